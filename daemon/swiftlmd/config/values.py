"""One option's value: checked when it comes typed from TOML, parsed when it comes as text."""

from __future__ import annotations

import json
import math
import re
import tomllib
import types
from collections.abc import Collection, Mapping
from typing import Any

from swiftlmd.config.settings import NEVER, Form, Option

_UNIT_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z%]*)", re.ASCII)


class BadValue(ValueError):
    """A value that its option does not take; the message names key, value and what it takes."""

    def __init__(self, option: Option, value: object) -> None:
        super().__init__(f"{option.key} = {value!r}: must be {expected(option)}")


def checked(option: Option, value: Any) -> Any:  # Any: TOML holds any type until it is checked here
    """`value` as config.toml holds it, in the type that Settings holds it in."""
    try:
        result = _READERS[option.form](value)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadValue(option, value) from error
    if option.choices and result not in option.choices:
        raise BadValue(option, value)
    if option.pattern and not re.fullmatch(option.pattern, str(result)):
        raise BadValue(option, value)
    if isinstance(result, int | float) and not option.minimum <= result <= _maximum(option):
        raise BadValue(option, value)
    if option.form is Form.SIZE and option.minimum > 0 and _is_zero(str(result)):
        raise BadValue(option, value)
    return result


def parsed(option: Option, text: str) -> Any:  # Any: the type depends on the option
    """`text` of an environment variable, a flag or `config set`, as a checked value."""
    return checked(option, plain(option, text))


def plain(option: Option, text: str) -> Any:  # Any: a TOML value
    """`text` as the TOML value it stands for, not yet checked."""
    form = option.form
    if form is Form.SWITCH:
        words = {"true": True, "yes": True, "on": True, "1": True}
        words |= {"false": False, "no": False, "off": False, "0": False}
        return words.get(text.strip().lower(), text)
    if form in (Form.INTEGER, Form.NUMBER):
        try:
            return int(text) if form is Form.INTEGER else float(text)
        except ValueError:
            return text
    if form is Form.LIST:
        return _list_from(text)
    if form is Form.TABLE:
        return _table_from(text)
    return text


def shown(option: Option, value: object) -> str:
    """`value` as text that `parsed` reads back; secrets are not shown."""
    if option.secret:
        return "(set)" if value else ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return json.dumps(list(value))
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    if isinstance(value, float):
        return "never" if math.isinf(value) else f"{value:g}"
    return str(value)


def expected(option: Option) -> str:
    """What the option takes, in words."""
    if option.choices:
        return "one of " + ", ".join(choice or '""' for choice in option.choices)
    if option.takes:
        return option.takes
    if option.form is Form.DURATION and option.maximum < 2**62:
        return (
            f'seconds, or "{option.minimum or 1:g}s", from {option.minimum:g} to {option.maximum:g}'
        )
    if option.form in (Form.INTEGER, Form.NUMBER) and option.maximum < 2**62:
        return f"{option.form.value} from {_plain(option.minimum)} to {_plain(option.maximum)}"
    if option.form is Form.SIZE and option.minimum > 0:
        return f"{option.form.value}, more than 0"
    if option.form in (Form.INTEGER, Form.NUMBER, Form.DURATION) and option.minimum > 0:
        return f"{option.form.value}, at least {option.minimum:g}"
    return option.form.value


def _plain(number: float) -> str:
    return f"{int(number)}" if number == int(number) else f"{number:g}"


def size_bytes(text: str, whole: int) -> int | None:
    """The bytes that a SIZE value means (`whole` = 100 %); None for "auto", 0 for "off"."""
    word = text.strip().lower()
    if word == "auto":
        return None
    if word == "off":
        return 0
    number, unit = _amount(word, (*_UNIT_BYTES, "%"))
    if unit == "%":
        return int(whole * number / 100)
    return int(number * _UNIT_BYTES[unit])


def _is_zero(text: str) -> bool:
    """Of an amount of nothing; "off" is a word, which means what its option says."""
    return text.strip().lower() != "off" and size_bytes(text, 10**12) == 0


def _maximum(option: Option) -> float:
    unbounded = option.form is Form.DURATION and option.maximum >= 2**62
    return NEVER if unbounded else option.maximum


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return int(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _list(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise TypeError
    return tuple(str(_text(item)) for item in value)


def _table(value: object) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise TypeError
    return types.MappingProxyType({str(key): _cell(item) for key, item in value.items()})


def _cell(value: object) -> str:
    """A table's value as text; a number, true or false may be written as such."""
    return json.dumps(value) if isinstance(value, int | float) else _text(value)


def _duration(value: object) -> float:
    if isinstance(value, int | float):
        seconds = _number(value)
        return NEVER if seconds < 0 else seconds  # -1 is what other servers call "never"
    word = _text(value).strip().lower()
    if word == "never":
        return NEVER
    if word.startswith("-"):
        return NEVER if float(word) < 0 else 0.0
    number, unit = _amount(word, _UNIT_S)
    return number * _UNIT_S[unit]


def _size(value: object) -> str:
    text = str(_integer(value)) if not isinstance(value, str) else str(value)
    if text.startswith("-"):
        raise ValueError
    bytes_ = size_bytes(text, 100)
    if text.strip().endswith("%") and (bytes_ or 0) > 100:
        raise ValueError
    return text


def _amount(word: str, units: Collection[str]) -> tuple[float, str]:
    match = _AMOUNT.fullmatch(word)
    if match is None or match[2].lower() not in units:
        raise ValueError(word)
    return float(match[1]), match[2].lower()


def _list_from(text: str) -> Any:  # Any: checked by the form
    stripped = text.strip()
    if stripped.startswith("["):
        return _json(stripped)
    return [part.strip() for part in stripped.split(",") if part.strip()]


def _table_from(text: str) -> Any:  # Any: checked by the form
    stripped = text.strip()
    if stripped.startswith("{"):  # as JSON has it, or TOML
        found = _json(stripped)
        return _toml(stripped) if isinstance(found, str) else found
    pairs = [part.partition("=") for part in stripped.split(",") if part.strip()]
    if any(not separator for _, separator, _ in pairs):
        return text
    return {key.strip(): value.strip() for key, _, value in pairs}


def _toml(text: str) -> Any:  # Any: checked by the caller's form
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _json(text: str) -> Any:  # Any: checked by the caller's form
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


_READERS = {
    Form.TEXT: _text,
    Form.INTEGER: _integer,
    Form.NUMBER: _number,
    Form.SWITCH: _switch,
    Form.LIST: _list,
    Form.TABLE: _table,
    Form.DURATION: _duration,
    Form.SIZE: _size,
}
