"""`setup`: from installed programs to a first answer: configuration, service, model, question.

What install.sh does once its environment stands, and what `uv tool install` and `pipx install`
leave to do. Running it again changes nothing that is there. Exit codes are install.sh's.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swiftlm_proto.exit_codes import CtlExit, SetupExit
from swiftlmctl.errors import CtlError

if TYPE_CHECKING:
    from swiftlm_proto.paths import Paths

MODEL = "smollm2-135m"
_QUESTION = "What is the capital of France?"
_OLDEST_MACOS = 14
_READY_S = 90.0  # a first start can be held up by the malware scan of a new program tree


class Step(StrEnum):
    """One step alone, for install.sh."""

    CONFIG = "config"
    MODEL = "model"
    ANSWER = "answer"


NoStart = Annotated[bool, typer.Option("--no-start", help="Register the service, do not start it.")]
OneStep = Annotated[Step | None, typer.Option("--step", hidden=True)]


def register(app: typer.Typer) -> None:
    app.command()(setup)


def setup(no_start: NoStart = False, step: OneStep = None) -> None:
    """Configure and start the service; try it with a small model."""
    from swiftlm_proto.paths import locate

    paths = locate()
    if step is Step.CONFIG:
        write_config(paths, os.environ)
    elif step is Step.MODEL:
        _fetch_model()
    elif step is Step.ANSWER:
        _ask()
    else:
        refuse_where_it_cannot_run(os.environ)
        refuse_another_installation(paths)
        _set_up(paths, no_start)


def _set_up(paths: Paths, no_start: bool) -> None:
    from swiftlmctl import output
    from swiftlmctl.commands import service

    with _writing(paths):
        write_config(paths, os.environ)
    with _ending_with(SetupExit.NO_SERVICE):
        service.install(no_start=True)
    if no_start:
        output.say("installed; `swiftlmctl start` starts it")
        raise typer.Exit(int(SetupExit.NOT_STARTED))
    with _ending_with(SetupExit.UNHEALTHY):
        _run_this_version(paths)
    _fetch_model()
    _ask()
    _say_what_is_next()


# --- where it cannot run --------------------------------------------------------------------------


def refuse_where_it_cannot_run(environ: Mapping[str, str]) -> None:
    """Raises CtlError under sudo, as root of a Mac, under Rosetta, and on systems without MLX."""
    if environ.get("SUDO_USER"):
        raise CtlError("run this as yourself, without sudo", code=SetupExit.IS_ROOT)
    if sys.platform == "darwin":
        _refuse_mac(os.getuid(), platform.machine(), platform.mac_ver()[0])


def _refuse_mac(uid: int, machine: str, release: str) -> None:
    if uid == 0:
        message = "root has no session to run a user's service in; run this as yourself"
        raise CtlError(message, code=SetupExit.IS_ROOT)
    if machine != "arm64":
        raise CtlError(
            f"this Python is built for {machine}: on Apple silicon it runs under Rosetta, where "
            "MLX finds no Metal",
            hint="install with a native one: `uv tool install --reinstall --python "
            "cpython-3.12-macos-aarch64 swiftlm`, in a terminal that does not run under Rosetta",
            code=SetupExit.NO_SYSTEM,
        )
    # A Python built with an older SDK says 10.16 or 16 for what came later.
    major = int(release.partition(".")[0] or 0)
    if 11 <= major < _OLDEST_MACOS:
        raise CtlError(
            f"MLX needs macOS {_OLDEST_MACOS}; this is {release}",
            hint="update macOS in System Settings, General, Software Update",
            code=SetupExit.NO_SYSTEM,
        )


def refuse_another_installation(paths: Paths) -> None:
    """install.sh keeps releases of its own: two installations would run one service."""
    current = paths.app / "current"
    if not current.exists() or current.resolve() == Path(sys.prefix).resolve():
        return
    raise CtlError(
        f"install.sh installed swiftlm in {paths.app}; both would run one service",
        hint=f"remove that one first: `sh install.sh --uninstall`; or use {current}/bin/swiftlmctl",
        code=SetupExit.USAGE,
    )


# --- steps ----------------------------------------------------------------------------------------


def write_config(paths: Paths, environ: Mapping[str, str]) -> None:
    """A config.toml where there is none; one that is there is the user's."""
    from swiftlm_proto import user_files
    from swiftlmctl import output

    if os.path.lexists(paths.config_file):
        return
    paths.app.mkdir(mode=0o700, parents=True, exist_ok=True)
    user_files.overwrite(paths.config_file, config_text(environ).encode())
    output.say(f"created {paths.config_file}")


def config_text(environ: Mapping[str, str]) -> str:
    """HF_HOME is taken from the installing shell: the service knows no shell."""
    lines = [
        "# swiftlm's configuration. `swiftlmctl config show` lists every option and its meaning;",
        "# `swiftlmctl config set KEY VALUE` changes this file and keeps its comments.",
        "",
        "[models]",
        f'default = "{MODEL}"',
    ]
    if home := environ.get("HF_HOME"):
        if not home.startswith(("/", "~")):  # the daemon starts elsewhere
            home = str(Path.cwd() / home)
        quoted = home.replace("\\", "\\\\").replace('"', '\\"')
        lines += ["", "[hub]", f'home = "{quoted}"']
    return "\n".join(lines) + "\n"


def _run_this_version(paths: Paths) -> None:
    """Starts the service; one that still runs what was here before is restarted."""
    from swiftlm_proto.version import version
    from swiftlmctl import client, output
    from swiftlmctl.commands import service

    service.start(wait=_READY_S)

    async def running(daemon: client.Daemon) -> str:
        return daemon.status.version

    found = client.call(running, any_protocol=True)
    if found != version():
        output.say(f"the service still runs {found}; restarting it as {version()}")
        service.restart(wait=_READY_S)


def _fetch_model() -> None:
    """The small one, where there is no model at all."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client
    from swiftlmctl.views import progress

    async def verb(daemon: client.Daemon) -> None:
        if (await daemon.admin.list_models(m.ListModelsRequest())).models:
            return
        steps = daemon.admin.pull(m.PullRequest(model=MODEL))
        await progress.follow(steps, f"pull {MODEL}", json=False)

    try:
        client.call(verb)
    except CtlError as error:
        raise CtlError(
            f"swiftlm runs, but {MODEL} could not be fetched: {error.message}",
            hint=f"try `swiftlmctl pull {MODEL}` later",
        ) from error


def _ask() -> None:
    from swiftlmctl import client, output
    from swiftlmctl.commands import chat

    async def default(daemon: client.Daemon) -> str:
        return daemon.status.default_model

    output.say()
    output.say(f"asking {client.call(default) or MODEL}: {_QUESTION}")
    try:
        chat.run(_QUESTION, temperature=0, max_tokens=40)
    except CtlError as error:
        raise CtlError(
            f"swiftlm runs, but gave no answer: {error.message}",
            hint="`swiftlmctl doctor` looks further",
        ) from error


def _say_what_is_next() -> None:
    from swiftlm_proto.version import version
    from swiftlmctl import client, output

    async def url(daemon: client.Daemon) -> str:
        return daemon.url

    output.say()
    output.say(f"swiftlm {version()} serves OpenAI clients at {client.call(url)}/v1. Next:")
    output.say("  swiftlmctl chat")
    output.say("  swiftlmctl status --watch")
    output.say("  swiftlmctl connect claude-code    (or codex, opencode, zed, ...)")
    if sys.platform == "darwin":
        output.say("macOS may say once that swiftlm was added to the background items.")


@contextlib.contextmanager
def _ending_with(code: SetupExit) -> Iterator[None]:
    """What fails in the block ends the program with install.sh's code for it."""
    try:
        yield
    except CtlError as error:
        raise CtlError(error.message, hint=error.hint, code=code) from error


@contextlib.contextmanager
def _writing(paths: Paths) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CtlError(
            f"cannot write {error.filename or paths.app}: {error.strerror}",
            hint="make room or make the folder yours; SWIFTLM_HOME names another place",
            code=SetupExit.CANNOT_WRITE,
        ) from error
    except CtlError as error:
        if error.code is not CtlExit.DENIED:
            raise
        raise CtlError(error.message, hint=error.hint, code=SetupExit.CANNOT_WRITE) from error
