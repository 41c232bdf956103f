"""`load`, `unload`, `pin`, `unpin`, `plan`, `mem`: models in memory and the arithmetic of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from swiftlm_proto.exit_codes import CtlExit
from swiftlm_proto.load_options import PLANNED
from swiftlmctl.commands.load_flags import takes_load_options
from swiftlmctl.commands.options import Force, Json, Model

if TYPE_CHECKING:
    from swiftlm_proto import messages as m


def register(app: typer.Typer) -> None:
    app.command()(takes_load_options(load))
    app.command()(unload)
    app.command()(pin)
    app.command()(unpin)
    app.command()(takes_load_options(plan, PLANNED))
    app.command()(mem)


def load(
    model: Model,
    options: m.LoadOptions,
    pin: Annotated[bool, typer.Option("--pin", help="Never unload it to make room.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Fetch a model that is not here.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Load even if the plan or the weights check refuses.")
    ] = False,
    json: Json = False,
) -> None:
    """Load a model into memory and wait until it answers."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.commands import first_use
    from swiftlmctl.views import progress

    request = m.LoadModelRequest(model=model, options=options, pin=pin, force=force)

    async def verb(daemon: client.Daemon) -> m.OperationEvent:
        await first_use.fetched(daemon, model, yes=yes)
        return await progress.follow(daemon.admin.load(request), f"load {model}", json=json)

    last = client.call(verb)
    if not json:
        output.say_wrapped(_loaded_words(model, last.model))


def _loaded_words(model: str, status: m.ModelStatus | None) -> str:
    from swiftlmctl import output

    if status is None or status.loaded is None:
        return f"{model} is loaded"
    loaded = status.loaded
    words = [
        f"{status.model} is loaded in {loaded.load_s:.1f} s: "
        f"{output.size_text(loaded.weight_bytes)} of weights in memory, "
        f"context {loaded.context}, kv {loaded.kv}, {loaded.device}",
        *(f"  {note}" for note in _plan_notes(status.plan)),
        *([f"  {loaded.weights_note}"] if loaded.weights_note else []),
        *(f"  note: {note}" for note in loaded.notes),
    ]
    return "\n".join(words)


def _plan_notes(text: str) -> list[str]:
    """What the plan chose that somebody who asked for nothing would not expect."""
    import json

    plan = json.loads(text) if text else {}
    streaming = plan.get("streaming") or {}
    notes = [f"{plan['strategy']}: {streaming['note']}"] if streaming.get("note") else []
    return [*notes, *plan.get("reductions", []), *plan.get("warnings", [])]


def unload(model: Model, force: Force = False, json: Json = False) -> None:
    """Take a model out of memory; its process ends."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output

    async def verb(daemon: client.Daemon) -> m.UnloadModelReply:
        return await daemon.admin.unload(m.UnloadModelRequest(model=model, force=force))

    reply = client.call(verb)
    client.check(reply.fault)
    if json:
        output.show_json(reply)
    elif reply.was_loaded:
        output.say(f"{model} is unloaded; {output.size_text(reply.freed_bytes)} came back")
    else:
        output.say(f"{model} was not loaded")


def pin(model: Model) -> None:
    """Keep a loaded model in memory, idle or not."""
    _set_pinned(model, True)


def unpin(model: Model) -> None:
    """Let a pinned model be unloaded again."""
    _set_pinned(model, False)


def _set_pinned(model: str, pinned: bool) -> None:
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output

    async def verb(daemon: client.Daemon) -> m.PinModelReply:
        return await daemon.admin.pin(m.PinModelRequest(model=model, pinned=pinned))

    client.check(client.call(verb).fault)
    output.say(f"{model} is {'pinned' if pinned else 'not pinned any more'}")


def plan(
    model: Model,
    options: m.LoadOptions,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show every byte of it.")
    ] = False,
    json: Json = False,
) -> None:
    """Say whether and how a model runs here, before it is fetched.

    Exits with 8 where it does not fit.
    """
    import json as jsonlib

    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.views import plan_words, report_tables

    async def verb(daemon: client.Daemon) -> m.PlanModelReply:
        return await daemon.admin.plan(m.PlanModelRequest(model=model, options=options))

    reply = client.call(verb)
    client.check(reply.fault)
    plan = jsonlib.loads(reply.plan)
    if json:
        output.say(reply.plan)
    elif verbose or "ranks" in plan or "strategy" not in plan:  # a group's plan is a table
        report_tables.show(jsonlib.dumps(plan_words.told(plan)))
    else:
        for sentence in plan_words.sentences(plan):
            output.say_wrapped(sentence)
        output.say("`-v` shows every byte of it.")
    if plan.get("strategy") == "refused":
        raise typer.Exit(CtlExit.DOES_NOT_FIT)


def mem(json: Json = False) -> None:
    """Show every byte the service holds or has promised."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.views import report_tables

    async def verb(daemon: client.Daemon) -> m.MemoryReply:
        return await daemon.admin.memory(m.MemoryRequest())

    reply = client.call(verb)
    if json:
        output.say(reply.ledger)
    else:
        report_tables.show(reply.ledger)
