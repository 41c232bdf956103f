"""`keys list|add|remove`: who may use the HTTP port. A key is shown once and kept as a hash."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import Annotated

import typer

from swiftlm_proto.paths import locate
from swiftlmctl.commands.options import Json

Name = Annotated[str, typer.Argument(help="What the key is for: a device, a program.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="API keys of the HTTP port.", no_args_is_help=True)
    group.command("list")(list_keys)
    group.command()(add)
    group.command()(remove)
    app.add_typer(group, name="keys")
    app.command("open")(open_page)


def open_page(
    show: Annotated[bool, typer.Option("--print", help="Print the address; open nothing.")] = False,
) -> None:
    """Open the web page as the owner, to change settings and keys.

    The address in it works once, for a minute, on this machine.
    """
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output

    async def verb(daemon: client.Daemon) -> m.OpenSessionReply:
        return await daemon.admin.open_session(m.OpenSessionRequest())

    url = client.call(verb).url
    if show:
        output.say(url)
        return
    import webbrowser

    page = locate().state / "open.html"
    _write_privately(page, url)
    if not webbrowser.open(page.as_uri()):
        output.say(f"no browser was found; open this address within a minute: {url}")


def _write_privately(page: Path, url: str) -> None:
    """A page that goes to `url`: on a command line every user of the machine could read it."""
    page.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    page.unlink(missing_ok=True)
    with open(page, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(url)}">')


def list_keys(json: Json = False) -> None:
    """List keys (secrets are not stored)."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output

    async def verb(daemon: client.Daemon) -> m.ListKeysReply:
        return await daemon.admin.list_keys(m.ListKeysRequest())

    found = client.call(verb)
    if json:
        output.show_json(found)
        return
    for name in found.names:
        output.say(name)
    if found.unnamed:
        output.say(f"and {found.unnamed} without a name, in http.api_keys")
    if not found.names and not found.unnamed:
        output.say("no key is asked for")


def add(
    name: Name,
    admin: Annotated[
        bool,
        typer.Option(
            "--admin",
            help="The key may also change settings and keys, remove models, and stop the daemon.",
        ),
    ] = False,
    expires: Annotated[
        str, typer.Option(help="Time after which the key is refused, for example 30d.")
    ] = "",
    json: Json = False,
) -> None:
    """Create a key (shown once)."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output

    lasts_s = _lasts_s(expires)

    async def verb(daemon: client.Daemon) -> m.AddKeyReply:
        request = m.AddKeyRequest(name=name, admin=admin, expires_in_s=lasts_s)
        return await daemon.admin.add_key(request)

    made = client.call(verb)
    client.check(made.fault)
    if json:
        output.show_json({"name": made.name, "key": made.key})
    else:
        output.say(made.key)


def _lasts_s(text: str) -> int:
    """Seconds; 0 = for ever."""
    from swiftlmctl.commands.durations import seconds

    return int(seconds(text)) if text else 0


def remove(name: Name) -> None:
    """Revoke a key."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output

    async def verb(daemon: client.Daemon) -> m.RemoveKeyReply:
        return await daemon.admin.remove_key(m.RemoveKeyRequest(name=name))

    client.check(client.call(verb).fault)
    output.say(f"key '{name}' is removed")
