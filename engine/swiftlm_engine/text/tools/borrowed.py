"""Families that mlx-lm reads: the text between their markers goes to its parser, whole."""

import json
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from swiftlm_engine.text.emitter import Emitter
from swiftlm_engine.text.markers import unmarked

Tools = Sequence[dict[str, Any]]
# A parser of another project may fail in any of these ways on what a model wrote.
PARSER_ERRORS = (ValueError, TypeError, LookupError, AttributeError, SyntaxError, RecursionError)


class BorrowedReader:
    """`end` empty: the calls end with the text."""

    def __init__(
        self,
        emitter: Emitter,
        parse: Callable[[str, Tools], Any],
        tools: Tools,
        start: str,
        end: str,
    ) -> None:
        self._emitter = emitter
        self._parse = parse
        self._tools = tools
        self._start = start
        self._end = end
        self._held = ""

    def feed(self, text: str) -> str | None:
        searched = max(0, len(self._held) - len(self._end))
        self._held += text
        if not self._end or (position := self._held.find(self._end, searched)) < 0:
            return None
        body, rest = self._held[:position], self._held[position + len(self._end) :]
        if not emit_parsed(self._emitter, self._parse, body, self._tools):
            self._emitter.reject_call(self._start + body + self._end)
        return rest

    def finish(self, cut: bool) -> None:
        if cut and self._end:
            return
        if not emit_parsed(self._emitter, self._parse, self._held, self._tools) and not cut:
            self._emitter.reject_call(self._start + self._held)


def emit_parsed(
    emitter: Emitter,
    parse: Callable[[str, Tools], Any],
    body: str,
    tools: Tools,
) -> bool:
    """Whether the body was calls; then they are emitted."""
    try:
        parsed = parse(unmarked(body), tools)
        calls = [_call(c) for c in (parsed if isinstance(parsed, list) else [parsed])]
    except PARSER_ERRORS:
        return False
    if not calls:
        return False
    for name, arguments, call_id in calls:
        emitter.open_call(name, call_id)
        emitter.arguments(arguments)
        emitter.close_call()
    return True


def _call(parsed: dict[str, Any]) -> tuple[str, str, str | None]:
    name, arguments = parsed["name"], parsed.get("arguments") or {}
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("not a call")
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    call_id = parsed.get("id")
    return name, text, call_id if isinstance(call_id, str) else None


def parser_of(module: ModuleType) -> Callable[[str, Tools], Any]:
    parse: Callable[[str, Tools], Any] = module.parse_tool_call
    return parse
