"""A group plan in words and as JSON. Speeds in it are predictions, and say so."""

from __future__ import annotations

from typing import Any

from swiftlm_engine.brain.plan.group_plan import GroupHost, GroupPlan, GroupRank, Way
from swiftlm_engine.brain.plan.machine import gigabytes
from swiftlm_engine.brain.plan.result import Strategy
from swiftlm_engine.brain.plan.share import Split
from swiftlm_engine.brain.plan.speed import PredictedSpeed, Range


def verdict(plan: GroupPlan) -> str:
    """`one`, `group`, `streamed` or `refused`."""
    if plan.way is not None:
        return "group"
    if plan.alone.refused:
        return "refused"
    return "one" if plan.alone.strategy is Strategy.RESIDENT else plan.alone.strategy.value


def reason(plan: GroupPlan) -> str:
    """Why this and not the other ways; one sentence or two."""
    if plan.way is not None:
        return f"{plan.hosts[0].name} alone {_alone(plan)}; {_chosen(plan, plan.way)}"
    if not plan.alone.refused:
        text = f"{plan.hosts[0].name} alone {_alone(plan)}"
        if plan.alone.strategy is Strategy.RESIDENT:
            return f"{text}{_faster(plan)}"
        return f"{text}; {_obstacles(plan)}"
    return f"{plan.hosts[0].name} alone {_alone(plan)}; {_obstacles(plan)}"


def _faster(plan: GroupPlan) -> str:
    """Whether hosts that the model does not need would pay."""
    alone = (plan.alone.speed.decode.low + plan.alone.speed.decode.high) / 2
    best = max((way for way in plan.ways if way.fits), key=lambda way: way.decode, default=None)
    if best is None or best.decode <= alone:
        return ""
    return (
        f"; {best.split} parallel over {best.hosts} is predicted to decode "
        f"{best.decode / alone:.1f} times as fast"
    )


def group_report(plan: GroupPlan) -> dict[str, Any]:  # Any: the shape of a JSON document
    leader = plan.way.ranks[0].plan if plan.way else plan.alone
    speed = plan.way.speed if plan.way else plan.alone.speed
    return {
        "verdict": verdict(plan),
        "hosts_needed": plan.way.hosts if plan.way else int(plan.fits),
        "split": plan.way.split.value if plan.way else None,
        "reason": reason(plan),
        "context": leader.settings.context,
        "parallel": leader.settings.parallel,
        "kv": leader.settings.kv.value,
        "ranks": ranks_report(plan.way) if plan.way else [],
        "prediction": _speed(speed) if plan.fits else None,
        "alone": {
            "strategy": plan.alone.strategy.value,
            "summary": plan.alone.summary,
            "prediction": None if plan.alone.refused else _speed(plan.alone.speed),
        },
        "ways": [_way(way) for way in plan.ways],
        "hosts": [_host(host) for host in plan.hosts],
    }


def ranks_report(way: Way) -> list[dict[str, Any]]:
    """What each rank holds, as JSON."""
    return [_rank(number, rank) for number, rank in enumerate(way.ranks)]


def _alone(plan: GroupPlan) -> str:
    alone = plan.alone
    sizes = f"{gigabytes(alone.needed_bytes)} of {gigabytes(alone.available_bytes)}"
    if alone.refused:
        return f"is too small ({sizes}, {alone.binding.name})"
    how = (
        "holds it" if alone.strategy is Strategy.RESIDENT else f"could only run it {alone.strategy}"
    )
    return f"{how} ({sizes}, {alone.binding.name})"


def _chosen(plan: GroupPlan, way: Way) -> str:
    others = [x for x in plan.ways if x.hosts == way.hosts and x is not way]
    fewer = f"{way.hosts} hosts are the fewest that hold it"
    rivals = [x for x in others if x.fits]
    if rivals:
        return f"{fewer}; {way.split} parallel, predicted to decode faster than {rivals[0].split}"
    why = "; ".join(f"{x.split} is not possible: {x.obstacle}" for x in others)
    return f"{fewer}; {way.split} parallel, since {why}" if why else fewer


def _obstacles(plan: GroupPlan) -> str:
    if not plan.ways:
        return "no further host answers"
    last = max(way.hosts for way in plan.ways)
    found = [f"{way.split}: {way.obstacle}" for way in plan.ways if way.hosts == last]
    return f"nor do {last} hosts hold it ({'; '.join(found)})"


def _rank(number: int, rank: GroupRank) -> dict[str, Any]:
    layers = rank.share.layers
    pipeline = rank.share.split is Split.PIPELINE
    return {
        "rank": number,
        "host": rank.host.name,
        "kind": rank.share.split.value,
        "first_layer": layers.start if pipeline else None,
        "last_layer": layers.stop - 1 if pipeline else None,
        "parts": rank.share.parts,
        "weight_bytes": rank.weight_bytes,
        "kv_bytes_per_token": rank.kv_bytes_per_token,
        "needed_bytes": rank.plan.needed_bytes,
        "available_bytes": rank.plan.available_bytes,
        "limit": rank.plan.binding.name,
    }


def _way(way: Way) -> dict[str, Any]:
    return {
        "split": way.split.value,
        "hosts": way.hosts,
        "fits": way.fits,
        "obstacle": way.obstacle,
        "prediction": _speed(way.speed) if way.speed else None,
    }


def _host(host: GroupHost) -> dict[str, Any]:
    link = host.link
    return {
        "name": host.name,
        "accelerator": host.machine.accelerator.value,
        "device": host.machine.device_name,
        "memory_bytes": host.machine.ram_bytes,
        "link_bytes_s": [link.bytes_s.low, link.bytes_s.high] if link else None,
        "link_delay_s": [link.delay_s.low, link.delay_s.high] if link else None,
    }


def _speed(speed: PredictedSpeed | None) -> dict[str, list[float]] | None:
    if speed is None:
        return None
    return {
        "prefill_tokens_s": _bounds(speed.prefill),
        "decode_tokens_s": _bounds(speed.decode),
        "decode_full_context_tokens_s": _bounds(speed.decode_full),
    }


def _bounds(bounds: Range) -> list[float]:
    return [round(bounds.low, 2), round(bounds.high, 2)]
