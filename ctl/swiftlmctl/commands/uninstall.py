"""`uninstall`: takes back what `setup`, `connect` and `--install-completion` wrote, and names what
stays. The programs themselves belong to the tool that installed them.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swiftlm_proto.exit_codes import SetupExit
from swiftlmctl.errors import CtlError

if TYPE_CHECKING:
    from swiftlm_proto.paths import Paths

Purge = Annotated[bool, typer.Option("--purge", help="Remove models and configuration too.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")]


def register(app: typer.Typer) -> None:
    app.command()(uninstall)


def uninstall(purge: Purge = False, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Remove the service; models and configuration stay."""
    from swiftlm_proto.paths import locate
    from swiftlmctl import output
    from swiftlmctl.service import choose

    paths = locate()
    _refuse_what_install_sh_keeps(paths)
    _list(paths, purge)
    if dry_run:
        return
    _agree(purge, yes)
    with _naming_what_fails(SetupExit.NO_SERVICE, "the service could not be removed"):
        choose(paths).uninstall()
    # First what takes room and nobody misses: a full disk would keep the rest from being written.
    for folder in (paths.cache, paths.logs):
        shutil.rmtree(folder, ignore_errors=True)
    left = [*_take_clients_back(paths), *_remove_completion(paths)]
    _remove_state(paths, keep_connect=bool(left))
    _remove_app(paths, purge)
    if left:
        raise CtlError("swiftlm's service is removed, but this is left: " + "; ".join(left))
    output.say(f"swiftlm's service is removed; `{tool_command()}` removes the programs")


def tool_command(prefix: str = sys.prefix) -> str:
    """What removes the environment that this program lies in."""
    parts = Path(prefix).parts
    if "tools" in parts and "uv" in parts:
        return "uv tool uninstall swiftlm"
    if "pipx" in parts:
        return "pipx uninstall swiftlm"
    return f"{prefix}/bin/python -m pip uninstall swiftlm"


def _refuse_what_install_sh_keeps(paths: Paths) -> None:
    current = paths.app / "current"
    if current.exists() or (paths.app / "versions").exists():
        raise CtlError(
            f"install.sh keeps its releases in {paths.app}",
            hint="`sh install.sh --uninstall` removes them, and everything else",
            code=SetupExit.USAGE,
        )


def _list(paths: Paths, purge: bool) -> None:
    from swiftlmctl import output

    output.say("to be removed:")
    output.say("  the service")
    places = [paths.cache, paths.logs, paths.state]
    places += [paths.models, paths.config_file] if purge else []
    for place in places:
        if place.exists():
            output.say(f"  {place} ({output.size_text(_size(place))})")
    for client in _connected(paths):
        output.say(f"  what `swiftlmctl connect {client}` wrote")
    if not purge:
        output.say(f"kept: {paths.config_file}, {paths.models}")
    output.say("kept: the Hugging Face cache, which other programs share")


def _size(place: Path) -> int:
    files = [place] if place.is_file() else place.rglob("*")
    return sum(file.lstat().st_blocks * 512 for file in files if file.is_file())


def _agree(purge: bool, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise CtlError(
            "without a terminal nobody can be asked; add --yes. Nothing was removed",
            code=SetupExit.USAGE,
        )
    typer.confirm("Remove these?", abort=True)
    if purge:
        typer.confirm("Models and configuration too, for good?", abort=True)


def _connected(paths: Paths) -> list[str]:
    """The clients that `connect` set up; what it changed is recorded in the state."""
    return sorted(record.stem for record in (paths.state / "connect").glob("*.json"))


def _take_clients_back(paths: Paths) -> list[str]:
    """Those that still point here, with where their record is."""
    from swiftlmctl import output
    from swiftlmctl.commands import clients

    left = []
    for client in _connected(paths):
        try:
            clients.connect(client, undo=True)
        except (CtlError, OSError) as error:
            output.warn(f"{client}: {error}")
            left.append(f"{client} still points to this service ({paths.state}/connect)")
    return left


def _remove_completion(paths: Paths) -> list[str]:
    from swiftlmctl import output
    from swiftlmctl.commands import shell_completion

    try:
        for path in shell_completion.remove(paths, Path.home()):
            output.say(f"removed completion from {path}")
    except (CtlError, OSError) as error:
        return [f"tab completion ({error})"]
    return []


def _remove_state(paths: Paths, *, keep_connect: bool) -> None:
    """A client that still points here needs its record for `connect --undo`."""
    if not keep_connect:
        shutil.rmtree(paths.state, ignore_errors=True)
        return
    for path in paths.state.iterdir():
        if path.name == "connect":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _remove_app(paths: Paths, purge: bool) -> None:
    """Sockets go; the folder too, when nothing of the user's is in it."""
    from swiftlmctl import output

    for socket in paths.app.glob("*.sock"):
        socket.unlink(missing_ok=True)
    if purge:
        shutil.rmtree(paths.models, ignore_errors=True)
        for file in paths.app.glob("config.toml*"):
            file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        paths.app.rmdir()
    if paths.app.exists():
        output.say(f"kept: {paths.app}")


@contextlib.contextmanager
def _naming_what_fails(code: SetupExit, what: str) -> Iterator[None]:
    try:
        yield
    except CtlError as error:
        raise CtlError(
            f"{what}; nothing else was: {error.message}", hint=error.hint, code=code
        ) from error
