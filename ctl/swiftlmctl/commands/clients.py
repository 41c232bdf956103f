"""`connect`: sets up a client program to use this service, or takes that back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from swiftlm_proto.exit_codes import CtlExit

if TYPE_CHECKING:
    from swiftlmctl.connect.clients import Client, Service

Name = Annotated[str, typer.Argument(help="Client to set up; omit to list supported clients.")]
OfModel = Annotated[
    str, typer.Option("--model", "-m", help="Model name (default: the default model).")
]
Key = Annotated[str, typer.Option("--key", help="API key, if the daemon requires one.")]
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
        _set_up(found, _service(model, key), only_print)


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

    path = client.path(Path.home())
    ledger = UndoLedger(locate().state / "connect")
    try:
        before = ledger.without_ours(client.name, path) if client.file else ""
        text = client.edit(before, service)
    except Unsafe as e:
        if client.file:
            output.say(f"{path} is left alone: {e}. Put this into it:\n")
        output.say(client.by_hand(service))
        output.say(f"\nthen {client.then}")
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
    output.say(f"{client.title} uses {service.model}{context}; {client.then}")
    output.say(f"`swiftlmctl connect {client.name} --undo` takes it back")
    if client.is_agent and not service.takes_tools:
        output.warn(
            f"{service.model} does not support tools; `swiftlmctl models search` lists others"
        )


def _service(model: str, key: str) -> Service:
    """Asks the daemon for its address, and for the context and tools of a model that is here."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.connect.clients import ANY_KEY, Service

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
        return Service(daemon.url, name, context, key or ANY_KEY, takes_tools)

    return client.call(verb)
