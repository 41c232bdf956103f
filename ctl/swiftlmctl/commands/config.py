"""`config`: the daemon's options, who set them, and changing them.

The daemon owns the options. While it runs they are asked for over the socket; while it is down
its own program answers, so that a broken file can be read and mended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from swiftlmctl.commands.options import Json

if TYPE_CHECKING:
    from pathlib import Path

    from swiftlm_proto import messages as m

Key = Annotated[str, typer.Argument(help="As `swiftlmctl config show` lists it: http.port")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Show and change the configuration.", no_args_is_help=True)
    for verb in (show, get, unset, edit, validate):
        group.command()(verb)
    # A value may be negative.
    group.command("set", context_settings={"ignore_unknown_options": True})(set_value)
    app.add_typer(group, name="config")


def show(
    table: Annotated[str, typer.Argument(help="Only this table: http, engine ...")] = "",
    origin: Annotated[bool, typer.Option("--origin", help="Who set each value.")] = False,
    changed: Annotated[bool, typer.Option("--changed", help="Leave out the defaults.")] = False,
    json: Json = False,
) -> None:
    """Show all options, or those of one table."""
    from swiftlmctl import output
    from swiftlmctl.commands import config_file
    from swiftlmctl.errors import CtlError

    reply = config_file.read("")
    entries = [
        entry for entry in reply.entries if entry.key.startswith(f"{table}." if table else "")
    ]
    if not entries:
        raise CtlError(f"no table {table!r}", hint="`swiftlmctl config show`")
    entries = [entry for entry in entries if not changed or entry.origin != "default"]
    if json:
        output.show_json({"path": reply.path, "options": output.plain(entries)})
        return
    columns = ("option", "value", *(("origin",) if origin else ()), "meaning")
    rows = tuple((e.key, e.value, *((e.origin,) if origin else ()), e.description) for e in entries)
    output.show_table(output.Table(columns, rows))
    output.say(f"\nfile: {reply.path}")


def get(key: Key, json: Json = False) -> None:
    """Show one option's value."""
    from swiftlmctl import output
    from swiftlmctl.commands import config_file
    from swiftlmctl.errors import CtlError

    entries = [entry for entry in config_file.read(key).entries if _is(entry, key)]
    if not entries:
        raise CtlError(f"no option {key!r}", hint="`swiftlmctl config show`")
    if json:
        output.show_json(entries[0])
    else:
        output.say(entries[0].value)


def set_value(
    key: Key,
    value: Annotated[str, typer.Argument(help="As in TOML; quotes may be left off.")],
    json: Json = False,
) -> None:
    """Set one option in the file; comments survive."""
    from swiftlmctl.commands import config_file

    _report(config_file.write(key, value), key, json)
    _warn_of(key)


def _warn_of(key: str) -> None:
    """What the daemon, if it runs, has to say of the new value: a default that is not here."""
    from swiftlmctl import client, output
    from swiftlmctl.errors import CtlError

    async def warnings(daemon: client.Daemon) -> list[str]:
        return [text for text in daemon.status.warnings if text.startswith(f"{key}: ")]

    try:
        found = client.call(warnings)
    except CtlError:
        return
    for text in found:
        output.warn(text)


def unset(key: Key, json: Json = False) -> None:
    """Reset an option to its default."""
    from swiftlmctl.commands import config_file

    _report(config_file.write(key, None), key, json)


def _report(reply: m.ConfigReply, key: str, json: bool) -> None:
    from swiftlmctl import output

    entries = [entry for entry in reply.entries if _is(entry, key)]
    if json:
        output.show_json(entries)
        return
    for entry in entries:
        output.say(_counts(entry))


def _is(entry: m.ConfigEntry, key: str) -> bool:
    """The quotes around a model's name may be left off."""
    return entry.key.replace('"', "") == key.replace('"', "")


def _counts(entry: m.ConfigEntry) -> str:
    """What an option is now, and from when on."""
    later = _overridden(entry)
    if not later and entry.needs_restart:
        later = "; `swiftlmctl restart` makes it count"
    elif not later and entry.key.partition(".")[0] in ("engine", "model"):
        later = "; counts when a model is loaded"
    return f"{entry.key} = {entry.value} ({entry.origin}){later}"


def _overridden(entry: m.ConfigEntry) -> str:
    """Who sets the option whatever the file says, if somebody does."""
    if entry.origin == "environment":
        name = f"SWIFTLM_{entry.key.replace('.', '_').upper()}"
        return f"; {name} in the daemon's environment overrides the file"
    if entry.origin == "flag":
        return "; a flag of `swiftlmd serve` overrides the file"
    return ""


def edit() -> None:
    """Edit a copy of the file in $EDITOR, check it and apply it."""
    import shutil
    import tempfile
    from pathlib import Path

    from swiftlm_proto import user_files
    from swiftlm_proto.paths import locate
    from swiftlmctl import output

    path = locate().config_file
    before = user_files.read(path)
    folder = Path(tempfile.mkdtemp(prefix="swiftlm-"))  # nobody else may read it
    try:
        copy = folder / path.name
        copy.write_bytes(before or b"")
        after = _edited(copy, path)
        if after != (before or b""):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _put(path, after, before)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    output.say(f"{path} is sound")
    _take_over()


def _edited(copy: Path, path: Path) -> bytes:
    """What the user wants the file to be; raises CtlError when that is nothing sound."""
    import os
    import shlex
    import subprocess
    import sys

    from swiftlmctl import output
    from swiftlmctl.commands import config_file
    from swiftlmctl.errors import CtlError

    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    while True:
        try:
            done = subprocess.run([*shlex.split(editor), str(copy)], check=False)
        except OSError as e:
            raise CtlError(f"the editor {editor!r} cannot be started", hint="set $EDITOR") from e
        if done.returncode:
            raise CtlError(f"{editor} ended with code {done.returncode}; {path} is as it was")
        try:
            config_file.validate(copy)
            return copy.read_bytes()
        except CtlError as e:
            said = str(e).replace(str(copy), str(path))
        discarded = f"your changes were discarded; {path} is as it was"
        if not sys.stdin.isatty():
            raise CtlError(f"{said}\n{discarded}", hint="`swiftlmctl config edit`")
        output.warn(said)
        if not _again():
            raise CtlError(discarded)


def _again() -> bool:
    try:
        return input("Edit again? [Y/n] ").strip().lower() in ("", "y", "yes")
    except EOFError:
        return False


def _put(path: Path, after: bytes, before: bytes | None) -> None:
    from swiftlm_proto import user_files
    from swiftlmctl.errors import CtlError

    try:
        user_files.replace(path, after, before=before)
    except OSError as e:
        kept = path.with_name(f"{path.name}.edited")
        try:
            user_files.overwrite(kept, after)
            hint = f"your text is in {kept}"
        except OSError:
            hint = "your changes were discarded"
        raise CtlError(f"{path} was not written: {e.strerror}", hint=hint) from e


def _take_over() -> None:
    from swiftlmctl import output
    from swiftlmctl.commands import config_file

    reply = config_file.reload()
    if reply is None:
        output.say("swiftlmd is not running; it reads the file when it starts")
    elif not reply.entries:
        output.say("nothing changed for the running daemon")
    else:
        for entry in reply.entries:
            output.say(_counts(entry))


def validate() -> None:
    """Check the file without starting anything."""
    from swiftlmctl import output
    from swiftlmctl.commands import config_file

    output.say(config_file.validate())
