"""Lays out hosts, what is wrong with them, and a plan over several."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any  # Any: JSON values

from swiftlmctl import output
from swiftlmctl.output import Table, size_text

if TYPE_CHECKING:
    from swiftlm_proto import messages as m

_SIZES = frozenset({"memory", "free", "weights", "KV/token", "needs", "of", "link", "delay"})


def show_hosts(found: m.ListHostsReply) -> None:
    rows = tuple((str(host.rank), host.name, host.agent or _without(host)) for host in found.hosts)
    output.show_table(Table(("rank", "host", "agent"), rows, frozenset({"rank"})))
    if len(found.hosts) > 1:
        output.say(f"\nother hosts reach this one at {found.address}")
    if found.secret_path:
        output.say(f"the group's secret: {found.secret_path}")


def show_checks(checks: Sequence[m.HostCheck]) -> None:
    """A table of what was found, then each problem with what mends it."""
    columns = ("host", "state", "swiftlm", "MLX", "device", "memory", "free", "link", "delay")
    output.show_table(Table(columns, tuple(_check_row(check) for check in checks), _SIZES))
    problems = [
        (_name(check), problem.kind.name.lower().replace("_", " "), problem.reason, problem.fix)
        for check in checks
        for problem in check.problems
    ]
    if problems:
        output.say()
        output.show_table(Table(("host", "problem", "what", "what to do"), tuple(problems)))


def show_plan(reply: m.PlanGroupReply) -> None:
    plan: dict[str, Any] = json.loads(reply.plan)
    output.say(f"{plan['model']}: {_verdict(plan)}")
    output.say(f"why: {plan['reason']}")
    if plan["verdict"] != "refused":
        size = f"{plan['context']:,} tokens, {plan['parallel']} at once, KV {plan['kv']}"
        output.say(f"settings: {size}")
    if plan["ranks"]:
        output.say()
        output.show_table(Table(_RANK_COLUMNS, tuple(map(_rank_row, plan["ranks"])), _SIZES))
    output.say()
    output.show_table(Table(_WAY_COLUMNS, tuple(_way_rows(plan))))
    output.say("speeds in tokens/s are predictions from memory bandwidth and measured links")
    if plan["ways"] and not plan["spread"]:
        output.say(f'to split it: `cluster = true` below [model."{plan["model"]}"] in config.toml,')
        output.say("which the daemon reads at SIGHUP or `swiftlmctl restart`")
    if reply.left_out:
        output.say()
        show_checks(reply.left_out)


_RANK_COLUMNS = ("rank", "host", "holds", "weights", "KV/token", "needs", "of")
_WAY_COLUMNS = ("way", "decode", "prefill", "verdict")


def _verdict(plan: dict[str, Any]) -> str:
    words = {
        "one": "fits on this machine",
        "refused": "fits nowhere",
        "group": f"needs {plan['hosts_needed']} hosts, {plan['split']} parallel",
    }
    return words.get(plan["verdict"], f"runs {plan['verdict']} on this machine alone")


def _rank_row(rank: dict[str, Any]) -> tuple[str, ...]:
    held = f"1/{rank['parts']} of each layer"
    if rank["kind"] == "pipeline":
        held = f"layers {rank['first_layer']} to {rank['last_layer']}"
    sizes = ("weight_bytes", "kv_bytes_per_token", "needed_bytes", "available_bytes")
    return (str(rank["rank"]), rank["host"], held, *(size_text(rank[name]) for name in sizes))


def _way_rows(plan: dict[str, Any]) -> list[tuple[str, ...]]:
    chosen = (plan["split"], plan["hosts_needed"])
    alone = plan["alone"]
    rows: list[tuple[str, ...]] = [
        ("this machine", *_speeds(alone["prediction"]), _alone_verdict(plan))
    ]
    for way in plan["ways"]:
        taken = chosen == (way["split"], way["hosts"])
        verdict = "chosen" if taken else "possible" if way["fits"] else way["obstacle"]
        rows.append((f"{way['split']}, {way['hosts']} hosts", *_speeds(way["prediction"]), verdict))
    return rows


def _alone_verdict(plan: dict[str, Any]) -> str:
    if plan["verdict"] not in ("group", "refused"):
        return "chosen"
    strategy: str = plan["alone"]["strategy"]
    return "too small" if strategy == "refused" else f"possible, {strategy}"


def _speeds(prediction: dict[str, Any] | None) -> tuple[str, str]:
    if prediction is None:
        return "", ""
    return _range(prediction["decode_tokens_s"]), _range(prediction["prefill_tokens_s"])


def _range(bounds: list[float]) -> str:
    return f"{bounds[0]:.3g} to {bounds[1]:.3g}"


def _check_row(check: m.HostCheck) -> tuple[str, ...]:
    state = "ready" if not check.problems else f"{len(check.problems)} to mend"
    if not check.version:
        return (_name(check), state, *[""] * 7)
    return (
        _name(check),
        state,
        check.version,
        check.mlx_version,
        check.device,
        size_text(check.memory_bytes),
        size_text(check.free_bytes),
        *_link(check.link),
    )


def _link(link: m.LinkMeasure | None) -> tuple[str, str]:
    """Median, and the spread of the rounds."""
    if link is None:
        return "", ""
    rate = f"{size_text(int(link.bytes_s_median))}/s"
    rate += f" ({size_text(int(link.bytes_s_low))} to {size_text(int(link.bytes_s_high))})"
    delay = f"{link.delay_s_median * 1e6:.0f} us"
    return rate, f"{delay} ({link.delay_s_low * 1e6:.0f} to {link.delay_s_high * 1e6:.0f})"


def _name(check: m.HostCheck) -> str:
    return check.host.name if check.host else ""


def _without(host: m.ClusterHost) -> str:
    return "this machine" if host.name in ("localhost", "127.0.0.1") else "through ssh"
