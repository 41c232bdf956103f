"""The base of every request model, and how a body becomes one.

`null` means the default; integers pass for floats; a field we do not know is named once in the
log; one that we must not ignore is refused by name.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from aiohttp import web
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from swiftlmd.http.errors import invalid, unsupported
from swiftlmd.http.limits import read_body

log = logging.getLogger(__name__)

MAX_NAMED_FIELDS = 256
MAX_COUNT = 2**31 - 1  # what the wire's integers hold with certainty

# What a larger body takes to parse, every other request would wait on the event loop.
_LARGE_BYTES = 1 << 20

_EMPTY: tuple[object, ...] = (None, False, 0, "", [], {})


class Body(BaseModel):
    """A JSON object from a client; unknown fields are kept aside in `model_extra`."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    # Known, and without effect on the answer.
    ignored: ClassVar[frozenset[str]] = frozenset()
    # Known, and refused unless empty: the reason, or what to use instead.
    refused: ClassVar[Mapping[str, str]] = {}
    # What means "off" in such a field where it is not one of the empty values.
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    def unknown(self) -> list[str]:
        """The fields that were sent with a value and that nothing here reads."""
        extra = self.model_extra or {}
        known = self.ignored | self.refused.keys()
        named = [name for name, value in extra.items() if value is not None and name not in known]
        inner = [(name, value) for name, value in self if isinstance(value, Body)]
        return named + [f"{name}.{below}" for name, value in inner for below in value.unknown()]


def _whole(value: Any) -> Any:  # Any: whatever JSON holds, before validation
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Some clients know one kind of number only and send 100.0. Bounds stand before the validator, so
# that the OpenAPI document has them.
Int = Annotated[int, BeforeValidator(_whole)]
Natural = Annotated[int, Field(ge=0, le=MAX_COUNT), BeforeValidator(_whole)]
Positive = Annotated[int, Field(ge=1), BeforeValidator(_whole)]


def _none_if_empty(value: Any) -> Any:  # Any: whatever JSON holds, before validation
    """Forms that nobody filled in send "" for a number."""
    return None if value == "" else value


T = TypeVar("T")
# A number that may be left out, also as an empty text.
Unset = Annotated[T | None, BeforeValidator(_none_if_empty)]


def _limit(value: Any) -> Any:  # Any: whatever JSON holds, before validation
    """Ollama and LM Studio write "no limit" as -1, -2 or 0."""
    whole = _whole(_none_if_empty(value))
    return None if type(whole) is int and whole in (-2, -1, 0) else whole


def _seed(value: Any) -> Any:  # Any: whatever JSON holds, before validation
    """llama.cpp writes "any seed" as -1."""
    whole = _whole(_none_if_empty(value))
    return None if type(whole) is int and whole == -1 else whole


def _limit_or_zero(value: Any) -> Any:  # Any: whatever JSON holds, before validation
    whole = _whole(_none_if_empty(value))
    return None if type(whole) is int and whole in (-2, -1) else whole


Limit = Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_limit)]
# For completions: 0 tokens with echo scores the prompt.
LimitOrZero = Annotated[
    Annotated[int, Field(ge=0, le=MAX_COUNT)] | None, BeforeValidator(_limit_or_zero)
]
# How far a penalty looks back: -1 is the whole text, 0 switches the penalty off.
Lookback = Annotated[int, Field(ge=-1, le=MAX_COUNT), BeforeValidator(_whole)]
TopLogprobs = Annotated[int, Field(ge=0, le=1000), BeforeValidator(_whole)]
TopK = Annotated[int, Field(ge=-1, le=MAX_COUNT), BeforeValidator(_whole)]
Seed = Annotated[Annotated[int, Field(ge=0, le=2**64 - 1)] | None, BeforeValidator(_seed)]

AnyBody = TypeVar("AnyBody", bound=Body)


class BodyReader:
    """Reads and validates bodies; remembers which unknown fields the log has named."""

    def __init__(self) -> None:
        self._named: set[tuple[str, str]] = set()

    async def read(self, request: web.Request, model: type[AnyBody], limit: int = 0) -> AnyBody:
        """The body as `model`; raises 400 that names the field at fault."""
        raw = await read_body(request, limit)
        if len(raw) > _LARGE_BYTES:
            body = await asyncio.to_thread(parse, model, raw)
        else:
            body = parse(model, raw)
        self._name_unknown(body, request.path)
        return body

    def _name_unknown(self, body: Body, path: str) -> None:
        for name in body.unknown():
            key = (path, name[:64])
            if key not in self._named and len(self._named) < MAX_NAMED_FIELDS:
                self._named.add(key)
                log.info("unknown field ignored path=%s field=%r", *key)


def parse(model: type[AnyBody], raw: bytes) -> AnyBody:
    """`raw` as `model`; raises 400 that names the field at fault."""
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        body = model.model_validate_json(raw or b"{}")
    except ValidationError as error:
        if (mended := _with_whole_characters(raw)) != raw:
            return parse(model, mended)
        raise _explain(error) from None
    _refuse(body)
    return body


def parse_nested(model: type[AnyBody], value: object, where: str) -> AnyBody:
    """An object inside a body, validated apart from it; `where` is its dotted name."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _explain(error, f"{where}.") from None


# Half of a surrogate pair; group 1 tells which.
_HALF = re.compile(rb"\\u[dD]([89a-fA-F])[\da-fA-F]{2}")
_HALF_BYTES = 6
_UNKNOWN = rb"\ufffd"  # as long


def _with_whole_characters(raw: bytes) -> bytes:
    """Halves of characters replaced: agents cut a tool's output inside an emoji, and send that
    history again with every later request."""
    mended = bytearray(raw)
    first = -2 * _HALF_BYTES  # where the last first half began
    for found in _HALF.finditer(raw):
        start, end = found.span()
        if _is_escaped(raw, start):
            continue
        if found[1] not in b"89abAB" and first == start - _HALF_BYTES:
            mended[first:start] = raw[first:start]  # it has its other half
            continue
        mended[start:end] = _UNKNOWN
        if found[1] in b"89abAB":
            first = start
    return bytes(mended)


def _is_escaped(raw: bytes, at: int) -> bool:
    before = at
    while before and raw[before - 1] == ord("\\"):
        before -= 1
    return (at - before) % 2 == 1


def _refuse(body: Body, where: str = "") -> None:
    for name, reason in body.refused.items():
        value = (body.model_extra or {}).get(name)
        if value is not None and value not in body.neutral.get(name, _EMPTY):
            raise unsupported(f"'{where}{name}' is not supported: {reason}", where + name)
    for name, value in body:
        if isinstance(value, Body):
            _refuse(value, f"{where}{name}.")


def _explain(error: ValidationError, where: str = "") -> Exception:
    details = error.errors(include_url=False, include_context=False, include_input=False)
    if details[0]["type"] == "json_invalid":
        return invalid(f"the body is not JSON: {details[0]['msg']}", code="invalid_json")
    param = _path(details[0])
    if not param:
        return invalid("the body must be a JSON object", code="invalid_type")
    param = where + param
    messages = list(dict.fromkeys(d["msg"] for d in details if where + _path(d) == param))
    missing = details[0]["type"] == "missing"
    code = "missing_required_parameter" if missing else "invalid_value"
    return invalid(f"{param}: {' or '.join(messages)}", param, code=code)


# How pydantic names the branches of a union inside an error's location; our fields look otherwise.
_BRANCH = re.compile(
    r"(str|int|float|bool)$|(list|dict|tuple|function-\w+|constrained-\w+)\b|[A-Z]"
)


def _path(detail: ErrorDetails) -> str:
    """`messages.0.content`: where it went wrong, without the names of union branches."""
    return ".".join(
        str(step) for step in detail["loc"] if isinstance(step, int) or not _BRANCH.match(step)
    )
