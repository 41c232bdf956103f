"""The verdict on a model over a group: the leader's share is planned like a model of its own."""

from __future__ import annotations

import json
from dataclasses import replace

from swiftlm_engine.brain.facts import ModelFacts
from swiftlm_engine.brain.plan import Plan, Way, ranks_report
from swiftlm_engine.brain.plan.share import Split
from swiftlmd.engines.placement import GroupPlacement, Placement, RankLimits


def spread(placement: Placement, way: Way, facts: ModelFacts) -> Placement:
    """`placement` is of the leader's share. It fits only if every rank's does."""
    plan = json.loads(placement.plan)
    plan["group"] = {"split": way.split.value, "ranks": ranks_report(way)}
    refusal = f"{placement.refusal}; {way.split} parallel over {way.hosts} hosts"
    if not way.fits:
        name = placement.request.model
        refusal = f"model '{name}' does not fit over {way.hosts} hosts: {way.obstacle}"
    return replace(
        placement,
        request=replace(placement.request, kv_budget_bytes=_kv_budget(way, facts)),
        fits=placement.forced or way.fits,
        refusal=refusal,
        plan=json.dumps(plan),
        group=GroupPlacement(
            split=way.split.value,
            layers=tuple(rank.share.layers for rank in way.ranks)
            if way.split is Split.PIPELINE
            else (),
            fingerprint=facts.fingerprint,
            limits=tuple(_limits(rank.plan) for rank in way.ranks),
        ),
        elsewhere=_elsewhere(way),
    )


def _elsewhere(way: Way) -> dict[str, int]:
    needed: dict[str, int] = {}
    for rank in way.ranks:
        if rank.host.name != way.ranks[0].host.name:
            needed[rank.host.name] = needed.get(rank.host.name, 0) + rank.plan.total_bytes
    return needed


def _limits(plan: Plan) -> RankLimits:
    engine = plan.engine
    return RankLimits(engine.memory_limit_bytes, engine.buffer_cache_bytes, engine.wired_bytes)


def _kv_budget(way: Way, facts: ModelFacts) -> int:
    """In the whole model's KV, by which the engine prices its requests."""
    plan = way.ranks[0].plan
    settings = plan.settings
    one = facts.kv_bytes(0, settings.context, settings.kv, plan.request.dtype)
    return one * settings.parallel
