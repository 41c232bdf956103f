"""A plan in a few sentences: whether it runs, with what, how fast. `-v` shows the arithmetic."""

from __future__ import annotations

from typing import Any  # JSON values

from swiftlmctl.output import size_text

_SLOW = 1.0  # tokens per second: about a word
_PARTS = ((0.05, "Almost all"), (0.29, "Three quarters"), (0.4, "Two thirds"), (0.6, "Half"),
          (0.7, "A third"), (0.85, "A quarter"), (1.0, "A few"))  # fmt: skip


def sentences(plan: dict[str, Any]) -> list[str]:
    """In the order in which somebody asks; warnings and what was reduced last."""
    needed, available = size_text(plan["needed_bytes"]), size_text(plan["available_bytes"])
    if plan["strategy"] == "refused":
        lines = [f"Does not run here: it needs {needed}, and {available} are available."]
        return lines + [f"Smallest change that fits: {fix}." for fix in plan.get("fixes", [])[:1]]
    found = [f"Runs{_how(plan)} It takes {needed} of {available}.", _settings(plan), _speed(plan)]
    return [*found, *map(_sentence, plan.get("reductions", [])), *map(_sentence, _warnings(plan))]


def _how(plan: dict[str, Any]) -> str:
    streaming = plan.get("streaming") or {}
    if not streaming:
        return ", all of it in memory."
    if streaming.get("mode") == "layers":
        total = streaming["streamed_layers"] + streaming["resident_layers"]
        return f". {streaming['streamed_layers']} of its {total} layers are read from the SSD."
    layers = streaming["resident_layers"] + streaming["streamed_layers"]
    held = streaming["resident_layers"] + (
        streaming["streamed_layers"] * streaming["slots"] / streaming["num_experts"]
    )
    part = next(words for share, words in _PARTS if held / layers <= share)
    return f". {part} of its experts are read from the SSD."


def _settings(plan: dict[str, Any]) -> str:
    several = plan["parallel"]
    who = "one request" if several == 1 else f"{several} requests"
    return f"{plan['context']:,} tokens of context for {who} at once, KV cache {plan['kv']}."


def _speed(plan: dict[str, Any]) -> str:
    low, high = plan["speed"]["decode_tokens_s"]
    source = "by calibration" if plan["speed"].get("calibrated") else "predicted"
    if high < _SLOW:
        return f"Below one word a second here ({_rate(low)} to {_rate(high)} tokens/s, {source})."
    return f"Writes {_rate(low)} to {_rate(high)} tokens/s ({source})."


def _rate(value: float) -> str:
    """Two digits, as a prediction deserves."""
    return f"{float(f'{value:.2g}'):.0f}" if value >= 10 else f"{value:.2g}"


def _warnings(plan: dict[str, Any]) -> list[str]:
    """The speed says the slowness already."""
    return [text for text in plan.get("warnings", []) if "below one token per second" not in text]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


_ONLY_IF_SO = ("auto_reduced", "shortfall_bytes", "forced")


def told(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan for a table: limits that are not set and answers that are no are left out."""
    shown = {name: item for name, item in plan.items() if item or name not in _ONLY_IF_SO}
    limits = plan.get("engine")
    if isinstance(limits, dict):
        shown["engine"] = {name: item for name, item in limits.items() if item}
    return shown
