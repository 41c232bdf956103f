"""The flags of `load` and `plan`, made from the one table of load options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from swiftlm_proto.load_options import LOAD_OPTIONS, Kind, LoadOption
from swiftlmctl.commands import durations
from swiftlmctl.commands.options import draft_name, layers


def takes_load_options(
    verb: Callable[..., None], chosen: Sequence[LoadOption] = LOAD_OPTIONS
) -> Callable[..., None]:
    """`verb` with a flag for each chosen option in place of its parameter `options`."""
    flags = [_parameter(option) for option in chosen]
    # The messages take longer to import than `--help` should.
    unread = {"m": SimpleNamespace(LoadOptions=object)}
    others = inspect.signature(verb, eval_str=True, locals=unread).parameters.values()
    first = [one for one in others if one.name != "options" and one.default is one.empty]
    rest = [one.replace(kind=one.KEYWORD_ONLY) for one in others if one.default is not one.empty]

    def with_flags(**values: Any) -> None:  # Any: as each flag says
        from swiftlm_proto import messages as m

        asked = {option.name: _sent(option, values.pop(option.name)) for option in chosen}
        verb(options=m.LoadOptions(**asked), **values)

    signature = inspect.Signature([*first, *flags, *rest])
    with_flags.__signature__ = signature  # type: ignore[attr-defined]
    with_flags.__annotations__ = {one.name: one.annotation for one in [*first, *flags, *rest]}
    with_flags.__name__, with_flags.__doc__ = verb.__name__, verb.__doc__
    return with_flags


def _parameter(option: LoadOption) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    flag = typer.Option(*option.spelled, help=_help(option), **_extra(option))
    kind = int if option.kind in (Kind.COUNT, Kind.LAYERS) else str
    return inspect.Parameter(
        option.name, keyword, default=None, annotation=Annotated[kind | None, flag]
    )


def _extra(option: LoadOption) -> dict[str, Any]:  # Any: what typer.Option takes
    if option.kind is Kind.COUNT:
        return {"min": 1, "max": option.maximum}
    if option.kind is Kind.LAYERS:
        return {"parser": layers, "metavar": "N|auto|all"}
    return {"callback": draft_name} if option.name == "draft" else {}


def _help(option: LoadOption) -> str:
    words = ", ".join(filter(None, option.choices))
    choices = f": {words}" if words and "(auto)" not in option.help else ""
    default = f" (default: {option.zero})" if option.zero else ""
    return f"{option.help}{choices}{default}."


def _sent(option: LoadOption, value: Any) -> Any:
    if option.kind is Kind.SECONDS and value is not None:
        return durations.keep_alive(value)
    return value
