"""JSON schemas of the services' messages, as `/admin` takes them: for the OpenAPI document."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from enum import Enum
from typing import Any

import betterproto2

Json = dict[str, Any]  # Any: JSON

# No field of the services is negative (`admin_operations.parse`).
_PLAIN: dict[type, Json] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer", "minimum": 0},
    float: {"type": "number", "minimum": 0},
    bytes: {"type": "string", "contentEncoding": "base64"},
}


def schemas(messages: Iterable[type[betterproto2.Message]], ref: str) -> dict[str, Json]:
    """By name, with the messages inside them; `ref` is a pattern of references to `{model}`."""
    found: dict[str, Json] = {}
    waiting = list(messages)
    while waiting:
        message = waiting.pop()
        if message.__name__ in found:
            continue
        properties = {
            name: _schema(hint, ref, waiting)
            for name, hint in typing.get_type_hints(message).items()
            if not name.startswith("_")  # the library's own
        }
        found[message.__name__] = {"type": "object", "properties": properties}
    return found


def _schema(hint: Any, ref: str, waiting: list[type[betterproto2.Message]]) -> Json:  # Any: a type
    """Messages that `hint` mentions are added to `waiting`."""
    inner = typing.get_args(hint)
    match typing.get_origin(hint):
        case origin if origin is list:
            return {"type": "array", "items": _schema(inner[0], ref, waiting)}
        case origin if origin is dict:
            return {"type": "object", "additionalProperties": _schema(inner[1], ref, waiting)}
        case types.UnionType | typing.Union:
            return _schema(inner[0], ref, waiting)  # `X | None`: a field that may be left out
    if hint in _PLAIN:
        return _PLAIN[hint]
    if issubclass(hint, Enum):
        return {"type": "string", "enum": [member.name for member in hint]}
    waiting.append(hint)
    return {"$ref": ref.format(model=hint.__name__)}
