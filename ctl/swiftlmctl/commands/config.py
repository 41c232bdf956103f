"""`config`: the daemon's options, who set them, and changing them.

The daemon owns the options. While it runs they are asked for over the socket; while it is down
its own program answers, so that a broken file can be read and mended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from swiftlmctl.commands.options import Json

if TYPE_CHECKING:
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
    later = ""
    if entry.needs_restart:
        later = "; `swiftlmctl restart` makes it count"
    elif entry.key.partition(".")[0] in ("engine", "model"):
        later = "; counts when a model is loaded"
    return f"{entry.key} = {entry.value} ({entry.origin}){later}"


def edit() -> None:
    """Edit the file in $EDITOR, check it and apply it."""
    import os
    import shlex
    import subprocess

    from swiftlm_proto.paths import locate
    from swiftlmctl.errors import CtlError

    path = locate().config_file
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        done = subprocess.run([*shlex.split(editor), str(path)], check=False)
    except FileNotFoundError as e:
        raise CtlError(f"no editor {editor!r}", hint="set $EDITOR") from e
    if done.returncode:
        raise CtlError(f"{editor} ended with code {done.returncode}")
    validate()
    _take_over()


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
