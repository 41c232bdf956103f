"""swiftlmctl: builds the verbs, runs one, turns its failure into an exit code.

Nothing heavy at import: `--help` has to appear at once. Verbs import what they need when they run.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

import typer

from swiftlm_proto.exit_codes import CtlExit
from swiftlm_proto.paths import settle_home
from swiftlm_proto.visible import visible_lines
from swiftlmctl.commands import (
    bench,
    cache,
    calibration,
    chat,
    clients,
    cluster,
    completion,
    config,
    doctor,
    keys,
    load,
    logs,
    models,
    requests,
    service,
    setup,
    status,
    store,
    uninstall,
    version,
)
from swiftlmctl.errors import CtlError

_ROOMS = (
    status, service, load, calibration, models, store, chat, logs, config, cache, requests, clients,
    bench, keys, doctor, cluster, setup, uninstall, completion,
)  # fmt: skip


def build() -> typer.Typer:
    """Typer's rich help costs a quarter of a second and is left off."""
    app = typer.Typer(
        name="swiftlmctl",
        help="Drives swiftlmd, the local LLM service on this machine.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for room in (*_ROOMS, version):
        room.register(app)
    _lead(app)
    return app


def _lead(app: typer.Typer) -> None:
    """Verbs that people know from other programs."""
    app.command("ps", hidden=True)(status.status)
    app.command("list", hidden=True)(models.list_models)
    app.command("show", hidden=True)(models.show)
    app.command("rm", hidden=True)(models.rm)

    @app.command("help", hidden=True)
    def show_help(context: typer.Context) -> None:
        """Show what there is."""
        typer.echo(context.find_root().get_help())

    @app.command("serve", hidden=True)
    def serve() -> None:
        """Say how the service is started."""
        raise CtlError(
            "swiftlmctl does not serve: the daemon does",
            hint="`swiftlmctl start` starts it; `swiftlmd serve` runs it in this terminal",
        )


def main() -> None:
    _open_what_is_closed()
    settle_home(os.environ)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal, or a piped file, that is not UTF-8
            stream.reconfigure(errors="replace")
    try:
        build()()
    except CtlError as e:
        sys.stdout.flush()
        sys.stderr.write(f"{_fitting(visible_lines(f'swiftlmctl: {e.text()}'))}\n")
        sys.exit(int(e.code))
    except OSError as e:  # a folder that cannot be made, a full disk
        sys.stdout.flush()
        where = visible_lines(f"{e.filename or 'the system'}: {e.strerror or e}")
        sys.stderr.write(f"swiftlmctl: {where}\n")
        sys.exit(int(CtlExit.DENIED if isinstance(e, PermissionError) else CtlExit.FAILED))


def _fitting(text: str) -> str:
    """An error that a terminal does not cut inside its words."""
    from swiftlmctl import output

    return output.wrapped(text, output.terminal_width()) if sys.stderr.isatty() else text


def _open_what_is_closed() -> None:
    """A stream that whoever started us has closed (`>&-`) takes what is written and keeps nothing;
    no file that is opened later gets its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != number:
                os.dup2(nothing, number)
                os.close(nothing)
            mode = "r" if name == "stdin" else "w"
            stream = open(number, mode, closefd=False)  # noqa: SIM115  as long as the process lives
            setattr(sys, name, stream)
