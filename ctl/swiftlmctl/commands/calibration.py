"""`calibrate` and `calibration show|edit|clear`: what models do on this machine, measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from swiftlmctl.commands.options import Json

if TYPE_CHECKING:
    from swiftlm_proto import messages as m

Model = Annotated[str, typer.Argument(help="A model; without one all of them.")]


def register(app: typer.Typer) -> None:
    app.command()(calibrate)
    group = typer.Typer(
        name="calibration", help="What was measured of models.", no_args_is_help=True
    )
    group.command()(show)
    group.command()(edit)
    group.command()(clear)
    app.add_typer(group)


def calibrate(
    model: Annotated[str, typer.Argument(help="A model; without one the default.")] = "",
    full: Annotated[
        bool, typer.Option("--full", help="Run up to five minutes (default: about one).")
    ] = False,
    json: Json = False,
) -> None:
    """Measure a model here; plans use the record. A request that comes ends it."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client
    from swiftlmctl.views import progress, report_tables

    async def verb(daemon: client.Daemon) -> m.OperationEvent:
        name = model or daemon.status.default_model
        request = m.CalibrateRequest(model=name, full=full)
        return await progress.follow(
            daemon.admin.calibrate(request), f"calibrate {name}", json=json
        )

    last = client.call(verb)
    if not json:
        report_tables.show(last.result)


def show(model: Model = "", json: Json = False) -> None:
    """Show the records: speeds with their spread, and what was chosen."""
    from swiftlm_proto import messages as m
    from swiftlmctl import output
    from swiftlmctl.views import report_tables

    reply = _ask(m.CalibrationsRequest(model=model))
    if json:
        output.say(reply.records)
    elif reply.records == "[]":
        output.say("nothing was measured yet; `swiftlmctl calibrate MODEL` does it now")
    else:
        report_tables.show(reply.records)


def edit(
    model: Annotated[str, typer.Argument(help="A measured model.")],
    choices: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=NUMBER",
            help="Of prefill_chunk, parallel, buffer_cache_bytes, kv_threshold.",
        ),
    ],
    json: Json = False,
) -> None:
    """Choose by hand; holds from the next load, until the record goes."""
    from swiftlm_proto import messages as m
    from swiftlmctl import output
    from swiftlmctl.views import report_tables

    action = m.CalibrationsRequestAction.EDIT
    reply = _ask(m.CalibrationsRequest(model=model, action=action, choices=_numbers(choices)))
    if json:
        output.say(reply.records)
    else:
        report_tables.show(reply.records)


def clear(model: Model = "", json: Json = False) -> None:
    """Forget what was measured."""
    from swiftlm_proto import messages as m
    from swiftlmctl import output

    reply = _ask(m.CalibrationsRequest(model=model, action=m.CalibrationsRequestAction.CLEAR))
    if json:
        output.show_json(reply)
    else:
        output.say(f"{reply.cleared} record(s) removed")


def _numbers(choices: list[str]) -> dict[str, int]:
    pairs = [choice.partition("=") for choice in choices]
    if bad := [
        choice for choice, pair in zip(choices, pairs, strict=True) if not pair[2].isdecimal()
    ]:
        raise typer.BadParameter(f"'{bad[0]}': give NAME=NUMBER")
    return {name: int(number) for name, _, number in pairs}


def _ask(request: m.CalibrationsRequest) -> m.CalibrationsReply:
    from swiftlmctl import client

    async def verb(daemon: client.Daemon) -> m.CalibrationsReply:
        return await daemon.admin.calibrations(request)

    reply = client.call(verb)
    client.check(reply.fault)
    return reply
