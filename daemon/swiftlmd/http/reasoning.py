"""The many spellings by which clients ask for more or less thinking, as the engine's one."""

from __future__ import annotations

import json
from typing import Any

from swiftlm_proto import messages as m
from swiftlmd.http.errors import invalid
from swiftlmd.http.schema import Body, Int

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


class ReasoningOptions(Body):
    """`reasoning: {...}` of OpenAI's Responses and of OpenRouter's chat."""

    effort: str | None = None
    enabled: bool | None = None
    max_tokens: Int | None = None
    summary: str | None = None
    generate_summary: str | None = None
    exclude: bool | None = None  # the model thinks, and its thoughts are not sent

    @staticmethod
    def hides(options: ReasoningOptions | None) -> bool:
        return options is not None and bool(options.exclude)


class ThinkingOptions(Body):
    """`thinking: {...}` of Anthropic, also sent to chat by clients of several Chinese models."""

    type: str | None = None
    budget_tokens: Int | None = None


def set_reasoning(
    request: m.GenerateRequest,
    chat: m.Chat,
    *,
    enabled: bool | None = None,
    effort: str | None = None,
    options: ReasoningOptions | None = None,
    thinking: ThinkingOptions | None = None,
    budget: int | None = None,
    template_kwargs: dict[str, Any] | None = None,
) -> None:
    """The most explicit word wins: a switch, then an effort."""
    options, thinking = options or ReasoningOptions(), thinking or ThinkingOptions()
    kwargs = template_kwargs or {}
    effort = effort or options.effort or ""
    if effort and effort not in EFFORTS:
        raise invalid(f"reasoning_effort: use one of {', '.join(EFFORTS)}", "reasoning_effort")
    switch = _first(enabled, kwargs.get("enable_thinking"), options.enabled, _switch(thinking))
    if switch is None and effort:
        switch = {"none": False, "minimal": None}.get(effort, True)
    chat.enable_thinking = switch if isinstance(switch, bool) else None
    chat.reasoning_effort = "" if effort == "none" else effort
    chat.template_kwargs = {key: json.dumps(value) for key, value in kwargs.items()}
    budget = _first(budget, thinking.budget_tokens, options.max_tokens)
    if budget is not None:
        if not 0 <= budget < 2**31:
            raise invalid("thinking_budget: must not be negative", "thinking_budget")
        request.thinking_budget = budget


def _switch(thinking: ThinkingOptions) -> bool | None:
    """`adaptive` leaves the choice to the model."""
    return {"enabled": True, "disabled": False}.get(thinking.type or "")


def _first(*values: Any) -> Any:  # Any: the first of several options of one type
    return next((value for value in values if value is not None), None)
