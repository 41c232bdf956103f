"""Tab completion of the user's shell: what it needs is added, and only that is removed again.

Typer makes the scripts; its own installation rewrites the whole start-up file of the shell, so the
lines come and go by `user_files`. A line that already stands there is not ours.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from swiftlm_proto import user_files
from swiftlm_proto.paths import Paths
from swiftlmctl.errors import CtlError

_PROGRAM = "swiftlmctl"
# Told apart from the same line of a person or of another program.
_MARK = "  # swiftlmctl"


@dataclass(frozen=True, slots=True)
class Shell:
    """Where a shell finds completions, and the lines of its start-up file by which it does."""

    name: str
    script: Path
    start_up: Path | None = None
    lines: tuple[str, ...] = ()


def shells(home: Path) -> dict[str, Shell]:
    bash = home / ".bash_completions" / f"{_PROGRAM}.sh"
    fish = home / ".config" / "fish" / "completions" / f"{_PROGRAM}.fish"
    find = f"fpath+=~/.zfunc; autoload -Uz compinit; compinit{_MARK}"
    known = (
        Shell("bash", bash, home / ".bashrc", (f"source '{bash}'",)),
        Shell("zsh", home / ".zfunc" / f"_{_PROGRAM}", home / ".zshrc", (find,)),
        Shell("fish", fish),
    )
    return {shell.name: shell for shell in known}


def install(shell: Shell, script: str, paths: Paths) -> None:
    """The script first: a line that reads a file which is not there would complain."""
    folders = user_files.missing_folders(shell.script.parent)
    files = [] if shell.start_up is None or shell.start_up.exists() else [shell.start_up]
    _remember(paths, folders, files)
    shell.script.parent.mkdir(parents=True, exist_ok=True)
    user_files.overwrite(shell.script, f"{script}\n".encode(), mode=0o644)
    if shell.start_up is None:
        return
    lines = [os.fsencode(line) for line in shell.lines]
    before = user_files.read(shell.start_up) or b""
    bare = {line.removesuffix(os.fsencode(_MARK)) for line in lines}
    if not bare <= {line.strip() for line in before.split(b"\n")}:
        user_files.add_lines(shell.start_up, lines)


def remove(paths: Paths, home: Path) -> list[Path]:
    """Takes back what `install` did for each shell; the files that changed. Raises OSError."""
    changed = []
    folders, files = _remembered(paths)
    bash = shells(home)["bash"].script
    if user_files.read(_record(paths)) is None and os.path.lexists(bash):
        # Set up by a release that kept no record, through Typer, which makes this one folder.
        folders = [bash.parent]
    for shell in shells(home).values():
        if shell.start_up is not None and user_files.remove_lines(
            shell.start_up, [os.fsencode(line) for line in shell.lines]
        ):
            changed.append(shell.start_up)
        if os.path.lexists(shell.script):
            changed.append(shell.script)
        user_files.remove(shell.script)  # and what a killed process left beside it
    for file in files:
        if user_files.read(file) == b"":
            user_files.remove(file)
    user_files.remove_folders(folders)
    user_files.remove(_record(paths))
    return changed


def installed_by_typer(
    shell: str | None = None, prog_name: str | None = None, complete_var: str | None = None
) -> tuple[str, Path]:
    """In place of typer.completion.install: the shell's name and where its script is."""
    from typer._completion_shared import get_completion_script

    from swiftlm_proto.paths import locate

    name = shell or _running_shell()
    found = shells(Path.home()).get(name)
    if found is None:
        raise CtlError(
            f"completion is not set up for {name or 'this shell'}",
            hint="for bash, zsh and fish it is; `swiftlmctl --show-completion` prints the script",
        )
    variable = complete_var or f"_{_PROGRAM.upper()}_COMPLETE"
    script = get_completion_script(prog_name=_PROGRAM, complete_var=variable, shell=name)
    install(found, script, locate())
    return name, found.script


def _running_shell() -> str:
    from typer._completion_shared import _get_shell_name

    return _get_shell_name() or ""


def _record(paths: Paths) -> Path:
    return paths.state / "completion.json"


def _remembered(paths: Paths) -> tuple[list[Path], list[Path]]:
    """The folders (outermost first) and start-up files that were not there before us."""
    content = user_files.read(_record(paths))
    with contextlib.suppress(ValueError, TypeError, KeyError):
        found = json.loads(content or b"{}")
        return [Path(p) for p in found["folders"]], [Path(p) for p in found["files"]]
    return [], []


def _remember(paths: Paths, folders: list[Path], files: list[Path]) -> None:
    known_folders, known_files = _remembered(paths)
    record = {
        "folders": list(dict.fromkeys(map(str, [*known_folders, *folders]))),
        "files": list(dict.fromkeys(map(str, [*known_files, *files]))),
    }
    paths.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    user_files.overwrite(_record(paths), json.dumps(record).encode())
