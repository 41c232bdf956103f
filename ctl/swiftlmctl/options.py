"""Options and arguments that several verbs share, spelled once."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Model = Annotated[str, typer.Argument(help="A name as in `swiftlmctl models`.", show_default=False)]
OptionalModel = Annotated[
    str, typer.Argument(help="A name as in `swiftlmctl models`; without it the default model.")
]
Force = Annotated[bool, typer.Option("--force", help="Do not wait for requests in flight.")]
