"""The environment in which chat templates are rendered: what transformers gives them, and no more.

jinja2 and the standard library only, so that a small process can render (`template_process.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")


def render(source: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
    """Messages and variables are plain JSON. Raises what the template raises, which is anything."""
    return _compiled(source).render(messages=[_named(m) for m in messages], **variables)


def _named(message: Mapping[str, Any]) -> dict[str, Any]:
    """Thoughts under each name that templates read; what is null is not there."""
    there = {key: value for key, value in message.items() if value is not None}
    thoughts = next((there[key] for key in REASONING_NAMES if key in there), None)
    if thoughts is None:
        return there
    return {"thinking": thoughts, **there, "reasoning_content": thoughts}


@lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment.from_string(source)


class _Generation(Extension):
    """`{% generation %}` marks what a model has said, for training; here it is drawn as it is."""

    tags = {"generation"}  # noqa: RUF012 as the base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_drawn"), [], [], body).set_lineno(line)

    def _drawn(self, caller: Macro) -> str:
        return str(caller())


class _Dict:
    """`dict` without its attributes."""

    def __call__(self, *args: Any, **named: Any) -> dict[Any, Any]:
        return dict(*args, **named)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """Takes no name that begins like one of Python's own."""

    def __init__(*args: Any, **named: Any) -> None:
        self, *given = args
        attributes = dict(*given, **named)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may not hold {name!r}: it begins with an underscore")


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models know it: nothing is escaped for HTML."""
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
