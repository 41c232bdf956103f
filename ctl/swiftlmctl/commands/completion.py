"""`--uninstall-completion`, and what `--install-completion` does: tab completion of the shell."""

from __future__ import annotations

from typing import Annotated

import typer
import typer.completion

from swiftlmctl.commands import shell_completion


def register(app: typer.Typer) -> None:
    # Typer's own rewrites the whole start-up file of the shell, in place and as UTF-8.
    typer.completion.install = shell_completion.installed_by_typer  # type: ignore[attr-defined] # its own
    app.callback(help=app.info.help)(options)


def _remove(wanted: bool) -> None:
    if not wanted:
        return
    from pathlib import Path

    from swiftlm_proto.paths import locate
    from swiftlmctl import output

    for path in shell_completion.remove(locate(), Path.home()):
        output.say(f"removed completion from {path}")
    raise typer.Exit


Uninstall = Annotated[
    bool,
    typer.Option(
        "--uninstall-completion",
        callback=_remove,
        is_eager=True,
        help="Remove what --install-completion added, for all shells.",
    ),
]


def options(uninstall: Uninstall = False) -> None:
    """Options of swiftlmctl itself; their callbacks do the work."""
