"""`connect`: sets up a client program to use this service, or takes that back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from swiftlm_proto.exit_codes import CtlExit

if TYPE_CHECKING:
    from swiftlmctl.client import Daemon
    from swiftlmctl.connect.clients import Client, Service

Name = Annotated[str, typer.Argument(help="Client to set up; omit to list supported clients.")]
OfModel = Annotated[
    str, typer.Option("--model", "-m", help="Model name (default: the default model).")
]
Key = Annotated[
    str, typer.Option("--key", help="API key (default: a new one, if the daemon requires one).")
]
Print = Annotated[bool, typer.Option("--print", help="Only print what would be written.")]
Undo = Annotated[bool, typer.Option("--undo", help="Remove swiftlm's entries.")]


def register(app: typer.Typer) -> None:
    app.command()(connect)


def connect(
    client: Name = "",
    model: OfModel = "",
    key: Key = "",
    only_print: Print = False,
    undo: Undo = False,
) -> None:
    """Set up a client: claude-code, codex, opencode, zed ..."""
    from swiftlmctl import output
    from swiftlmctl.connect.clients import CLIENTS, named
    from swiftlmctl.errors import CtlError

    if not client:
        rows = tuple((c.name, c.title, f"~/{c.file}" if c.file else "") for c in CLIENTS)
        output.show_table(output.Table(("client", "program", "file"), rows))
        return
    found = named(client)
    if found is None:
        names = ", ".join(c.name for c in CLIENTS)
        raise CtlError(f"no client {client!r}; there are {names}", code=CtlExit.USAGE)
    if undo:
        _take_back(found)
    else:
        _set_up(found, _service(found, model, key, only_print), only_print)


def _take_back(client: Client) -> None:
    from pathlib import Path

    from swiftlm_proto.paths import locate
    from swiftlmctl import output
    from swiftlmctl.connect.undo import UndoLedger

    done = UndoLedger(locate().state / "connect").undo(client.name, client.path(Path.home()))
    gone = "is removed, there was none before"
    output.say(f"{done.path} {'contains no swiftlm entries now' if done.path.exists() else gone}")
    for name in done.left:
        output.warn(f"{name} was changed since and stays in {done.path}")


def _set_up(client: Client, service: Service, only_print: bool) -> None:
    from pathlib import Path

    from swiftlm_proto import user_files
    from swiftlm_proto.paths import locate
    from swiftlmctl import output
    from swiftlmctl.connect.edits import Unsafe
    from swiftlmctl.connect.undo import UndoLedger

    _warn_of_limits(client, service)
    path = client.path(Path.home())
    ledger = UndoLedger(locate().state / "connect")
    try:
        before = ledger.without_ours(client.name, path) if client.file else ""
        text = client.edit(before, service)
    except Unsafe as e:
        if client.file:
            output.say(f"{path} is left alone: {e}. Put this into it:\n")
        output.say(client.by_hand(service))
        output.say(f"\nthen {client.next_step(service)}")
        return
    if only_print:
        output.say(text.rstrip())
        return
    content = text.encode("utf-8", "surrogateescape")
    if user_files.read(path) == content:
        output.say(f"{path} is already set up")
        return
    backup = ledger.write(client.name, path, text)
    output.say(f"wrote {path}" + (f" (a copy from before: {backup})" if backup else ""))
    context = f" with {service.context:,} tokens of context" if service.context else ""
    output.say(f"{client.title} uses {service.model}{context}; {client.next_step(service)}")
    output.say(f"`swiftlmctl connect {client.name} --undo` takes it back")


def _warn_of_limits(client: Client, service: Service) -> None:
    """What keeps this client from working with this model, before it is tried."""
    from swiftlmctl import output

    if too_small := client.too_small(service):
        output.warn(too_small)
    if client.is_agent and not service.takes_tools:
        output.warn(
            f"{service.model} does not support tools; `swiftlmctl models search` lists others"
        )


def _service(to: Client, model: str, key: str, only_print: bool) -> Service:
    """Asks the daemon for its address, for the context and tools of a model, and for a key."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.connect.clients import Service

    async def verb(daemon: client.Daemon) -> Service:
        name = model or daemon.status.default_model
        here = (await daemon.admin.list_models(m.ListModelsRequest())).models
        found = next((status for status in here if status.model == name), m.ModelStatus())
        if not found.model:
            output.warn(f"no model {name!r} here; unless it is an alias, pull it first")
        fit = (await daemon.store.fit(m.FitModelsRequest(models=[name]))).fits.get(name)
        planned = fit.context if fit else 0
        context = found.loaded.context if found.loaded else planned or found.context
        takes_tools = found.tools or not found.model
        given = key or await _key(daemon, to, only_print)
        return Service(daemon.url, name, context, given, found.context, takes_tools)

    return client.call(verb)


async def _key(daemon: Daemon, to: Client, only_print: bool) -> str:
    """What the daemon takes: any text where it has no keys, else one for this client."""
    from pathlib import Path

    from swiftlm_proto import user_files
    from swiftlmctl import output
    from swiftlmctl.connect import keys
    from swiftlmctl.connect.clients import ANY_KEY, NO_KEY

    if not await keys.is_required(daemon):
        return ANY_KEY
    written = user_files.read(to.path(Path.home())) if to.file else None
    if kept := keys.key_in((written or b"").decode("utf-8", "replace"), daemon.url):
        return kept
    if only_print:
        output.warn(
            f"the daemon requires a key: `swiftlmctl keys add {to.name}` makes one, "
            "then give it by --key"
        )
        return NO_KEY
    made = await keys.made(daemon, to.name)
    output.say(f"made the key '{made.name}'; `swiftlmctl keys remove \"{made.name}\"` revokes it")
    return made.key
