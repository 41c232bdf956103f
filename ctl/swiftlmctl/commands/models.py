"""`models` (list, show, rm; more in store.py) and `pull`: what is on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swiftlmctl.commands import store
from swiftlmctl.commands.options import Json, Model

if TYPE_CHECKING:
    from swiftlm_proto import messages as m


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="List, inspect and remove models.", invoke_without_command=True)
    group.callback()(models)
    group.command("list")(list_models)
    group.command()(show)
    group.command()(rm)
    store.register_in_models(group)
    app.add_typer(group, name="models")
    app.command()(pull)


def models(context: typer.Context, json: Json = False) -> None:
    """List, inspect and remove models; alone it lists them."""
    if context.invoked_subcommand is None:
        list_models(json=json)


def list_models(json: Json = False) -> None:
    """List the models on this machine, and how each would run here."""
    from swiftlmctl import output
    from swiftlmctl.views import model_table

    found, daemon = _listed()
    if json:
        fits = _fits()
        output.show_json(
            [{**output.plain(x), "fit": output.plain(fits.get(x.model))} for x in found]
        )
    elif found:
        output.show_table(model_table.listed_table(found, _fits(), daemon))
    else:
        output.say("no models here yet; `swiftlmctl pull smollm2-135m` fetches a small one")


def _fits(*names: str) -> dict[str, m.ModelFit]:
    """Of these models or of all; none where the settings allow no plan: a list must not fail."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output

    async def verb(daemon: client.Daemon) -> m.FitModelsReply:
        return await daemon.store.fit(m.FitModelsRequest(models=list(names)))

    reply = client.call(verb)
    if reply.fault is not None:
        output.warn(f"no verdicts: {reply.fault.message}")
    return reply.fits


def _listed() -> tuple[list[m.ModelStatus], m.DaemonStatus]:
    from swiftlm_proto import messages as m
    from swiftlmctl import client

    async def verb(daemon: client.Daemon) -> tuple[list[m.ModelStatus], m.DaemonStatus]:
        reply = await daemon.admin.list_models(m.ListModelsRequest())
        return reply.models, daemon.status

    return client.call(verb)


def show(model: Model, json: Json = False) -> None:
    """Show everything known about one model."""
    import json as jsonlib

    from swiftlmctl import output
    from swiftlmctl.errors import CtlError
    from swiftlmctl.views import model_table, report_tables

    found, _ = _listed()
    match = [status for status in found if model in (status.model, status.path)]
    if not match:
        names = ", ".join(status.model for status in found) or "none yet"
        raise CtlError(
            f"no model {model!r} here; there are: {names}", hint=f"`swiftlmctl pull {model}`"
        )
    model = match[0].model
    fit = _fits(model).get(model)
    if json:
        output.show_json({**output.plain(match[0]), "fit": output.plain(fit)})
    else:
        report_tables.show(jsonlib.dumps(model_table.facts(match[0], fit)))


def rm(
    model: Model,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    json: Json = False,
) -> None:
    """Remove a model's files, after saying which and how much."""
    from swiftlmctl import output

    planned = _remove(model, dry_run=True)
    if dry_run:
        _show_removal(planned, "would free", json)
        return
    if not yes:
        _show_removal(planned, "would free", json=False)
        typer.confirm("Remove these?", abort=True)
    removed = _remove(model, dry_run=False)
    if json:
        output.show_json(removed)
    else:
        output.say(f"{model} is removed; {output.size_text(removed.freed_bytes)} freed")


def _remove(model: str, *, dry_run: bool) -> m.RemoveModelReply:
    from swiftlm_proto import messages as m
    from swiftlmctl import client

    async def verb(daemon: client.Daemon) -> m.RemoveModelReply:
        return await daemon.admin.remove_model(m.RemoveModelRequest(model=model, dry_run=dry_run))

    reply = client.call(verb)
    client.check(reply.fault)
    return reply


def _show_removal(reply: m.RemoveModelReply, verb: str, json: bool) -> None:
    from swiftlmctl import output

    if json:
        output.show_json(reply)
        return
    for path in reply.paths:
        output.say(f"  {path}")
    output.say(f"{verb} {output.size_text(reply.freed_bytes)}")


def pull(
    model: Annotated[
        str,
        typer.Argument(help="smollm2-135m, ORG/NAME of the hub, or a folder.", show_default=False),
    ],
    revision: Annotated[str, typer.Option(help="Branch, tag or commit.")] = "",
    include: Annotated[
        list[str] | None, typer.Option(help="Further files, or one .gguf; may be repeated.")
    ] = None,
    name: Annotated[
        str, typer.Option(help="List a GGUF file or a folder under this name. [default: its own]")
    ] = "",
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop a running pull.")] = False,
    json: Json = False,
) -> None:
    """Fetch a model: built-in, from the hub, or a folder."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.views import progress

    if model.startswith(("/", "./", "../", "~")):
        model = store.absolute(Path(model))
    request = m.PullRequest(
        model=model, revision=revision, cancel=cancel, include=include or [], name=name
    )

    async def verb(daemon: client.Daemon) -> m.OperationEvent:
        return await progress.follow(daemon.admin.pull(request), f"pull {model}", json=json)

    last = client.call(verb)
    if json:
        return
    if cancel:
        output.say(last.detail or f"the pull of {model} is cancelled")
    else:
        size = last.model.size_bytes if last.model else last.total_bytes
        name = last.model.model if last.model else model
        detail = f"; {last.detail}" if last.detail else ""
        output.say(f"{name} is here ({output.size_text(size)}){detail}")
