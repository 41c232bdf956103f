"""`keys list|add|remove`: who may use the HTTP port. A key is shown once and kept as a hash."""

from __future__ import annotations

from typing import Annotated

import typer

from swiftlmctl.commands.options import Json

Name = Annotated[str, typer.Argument(help="What the key is for: a device, a program.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="API keys of the HTTP port.", no_args_is_help=True)
    group.command("list")(list_keys)
    group.command()(add)
    group.command()(remove)
    app.add_typer(group, name="keys")


def list_keys(json: Json = False) -> None:
    """Name the keys; their text is nowhere kept."""
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


def add(name: Name, json: Json = False) -> None:
    """Make a key and show it, this once."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output

    async def verb(daemon: client.Daemon) -> m.AddKeyReply:
        return await daemon.admin.add_key(m.AddKeyRequest(name=name))

    made = client.call(verb)
    client.check(made.fault)
    if json:
        output.show_json({"name": made.name, "key": made.key})
    else:
        output.say(made.key)


def remove(name: Name) -> None:
    """Let the key in no more, from now on."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output

    async def verb(daemon: client.Daemon) -> m.RemoveKeyReply:
        return await daemon.admin.remove_key(m.RemoveKeyRequest(name=name))

    client.check(client.call(verb).fault)
    output.say(f"key '{name}' is removed")
