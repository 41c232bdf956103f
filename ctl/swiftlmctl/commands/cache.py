"""`cache stats|clear`: the prefix caches of models; those of loaded models have statistics."""

from __future__ import annotations

from typing import Annotated

import typer

from swiftlmctl.commands.options import Json

EveryModel = Annotated[
    str, typer.Argument(help="A name as in `swiftlmctl models` (default: all models).")
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Prefix caches: what they hold and save.", no_args_is_help=True)
    group.command()(stats)
    group.command()(clear)
    app.add_typer(group, name="cache")


def stats(model: EveryModel = "", json: Json = False) -> None:
    """Show hits, misses and bytes; of all models without a name."""
    import json as jsonlib

    from swiftlmctl import output
    from swiftlmctl.views import report_tables

    found = _control(model, clear=False)
    if json:
        output.show_json(found)
    elif not found:
        output.say("no model is loaded")
    for name, stats in found.items() if not json else ():
        output.say(name)
        report_tables.show(jsonlib.dumps(output.plain(stats)))


def clear(model: EveryModel = "", json: Json = False) -> None:
    """Delete kept prefixes of a model, in memory and on disk, or of all."""
    from swiftlmctl import output

    found = _control(model, clear=True)
    if json:
        output.show_json(found)
    else:
        output.say(f"cleared: {', '.join(found) or 'nothing was kept'}")


def _control(model: str, *, clear: bool) -> dict[str, object]:
    """By model: its books, or what was deleted on disk of one that is not loaded."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client

    async def verb(daemon: client.Daemon) -> m.CacheControlReply:
        return await daemon.admin.cache_control(m.CacheControlRequest(model=model, clear=clear))

    reply = client.call(verb)
    client.check(reply.fault)
    deleted = {name: {"deleted_bytes": size} for name, size in reply.deleted_bytes.items()}
    return {**reply.stats, **deleted}
