"""Options and arguments that several verbs share, spelled once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def model_name(text: str) -> str:
    """A folder's path as the daemon must hear it: it has another working directory."""
    if text.startswith(("/", "./", "../", "~")):
        return str(Path(text).expanduser().absolute())
    return text


def draft_name(text: str | None) -> str | None:
    """As `model_name`, of an option that may be left out."""
    return None if text is None else model_name(text)


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Model = Annotated[
    str,
    typer.Argument(
        help="A name as in `swiftlmctl models`, or a folder's path.",
        show_default=False,
        callback=model_name,
    ),
]
OptionalModel = Annotated[
    str,
    typer.Argument(
        help="A name as in `swiftlmctl models`, or a folder's path (default: the default model).",
        callback=model_name,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Do not wait for requests in flight.")]


def layers(text: str) -> int:
    """A number of layers as `LoadOptions` has it."""
    from swiftlm_proto.layers import ALL_LAYERS, AUTO_LAYERS

    words = {"all": ALL_LAYERS, "auto": AUTO_LAYERS}
    if text in words:
        return words[text]
    if text.isdecimal() and int(text) < AUTO_LAYERS:
        return int(text)
    raise typer.BadParameter(f"{text!r} is not a number of layers, auto or all")
