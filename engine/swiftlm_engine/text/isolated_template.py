"""A model's templates, rendered in a process that may be stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from swiftlm_engine.isolation.child import ChildFailed
from swiftlm_engine.isolation.children import Children
from swiftlm_engine.isolation.work import current
from swiftlm_engine.text import template_process

DEADLINE_S = 10.0
_S_PER_BYTE = 1e-6
_LIMIT_BYTES = 512 << 20
_BYTES_PER_BYTE = 16  # of a conversation: as JSON, as objects, as text


class TemplateBroken(Exception):
    """The template hangs, crashes or eats memory: no other way to say the conversation helps."""


class IsolatedTemplates:
    """Of one model. Any thread may render."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._places = {source: place for place, source in enumerate(sources)}
        first = json.dumps(list(sources)).encode()
        self._children = Children(template_process.__name__, lambda: first)

    def warm(self) -> None:
        self._children.warm()

    def render(
        self, source: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
    ) -> str:
        """Raises TemplateError as the template does, and TemplateBroken."""
        place = self._places[source]
        asked = json.dumps({"template": place, "messages": messages, "variables": variables})
        answer = self._answer(asked.encode())
        kind, said = answer[:1], answer[1:].decode("utf-8", "surrogatepass")
        if kind == b"+":
            return said
        if kind == b"!":
            raise TemplateBroken(f"ends with {said}")
        raise TemplateError(said)

    def _answer(self, asked: bytes) -> bytes:
        work = current()
        allowed = min(DEADLINE_S + len(asked) * _S_PER_BYTE, work.allowed_s)
        if allowed <= 0:
            raise TemplateBroken("takes longer than 30 s")
        try:
            with work.measured():
                limit = _LIMIT_BYTES + _BYTES_PER_BYTE * len(asked)
                return self._children.ask(asked, allowed, limit)
        except ChildFailed as error:
            raise TemplateBroken(error.went) from error
