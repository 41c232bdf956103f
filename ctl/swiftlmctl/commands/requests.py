"""`requests` and `cancel`: what is being answered right now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from swiftlmctl.commands.options import Json

if TYPE_CHECKING:
    from swiftlm_proto import messages as m

_COLUMNS = ("request", "model", "route", "phase", "prompt", "cached", "tokens", "age", "client")


def register(app: typer.Typer) -> None:
    app.command()(requests)
    app.command()(cancel)


def requests(json: Json = False) -> None:
    """List the requests in flight."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output

    async def verb(daemon: client.Daemon) -> m.RequestsReply:
        return await daemon.admin.requests(m.RequestsRequest())

    found = client.call(verb).requests
    if json:
        output.show_json(found)
    elif found:
        rows = tuple(_row(request) for request in found)
        right = frozenset({"prompt", "cached", "tokens", "age"})
        output.show_table(output.Table(_COLUMNS, rows, right))
    else:
        output.say("nothing in flight")


def _row(request: m.ActiveRequest) -> tuple[str, ...]:
    from swiftlm_proto import messages as m
    from swiftlmctl import output

    state = request.state or m.RequestState()
    return (
        request.request_id,
        request.model,
        request.route,
        state.phase,
        f"{state.done_tokens}/{state.prompt_tokens}",
        str(state.cached_tokens),
        str(state.completion_tokens),
        output.duration_text(state.age_s),
        request.client,
    )


def cancel(
    request: Annotated[str, typer.Argument(help="As `swiftlmctl requests` shows it.")],
    json: Json = False,
) -> None:
    """End a request now; its client gets a closing event."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.errors import CtlError

    async def verb(daemon: client.Daemon) -> m.CancelReply:
        return await daemon.admin.cancel(m.CancelRequest(request_id=request))

    reply = client.call(verb)
    if json:
        output.show_json(reply)
    elif reply.found:
        output.say(f"{request} is cancelled")
    if not reply.found:
        raise CtlError(f"no request {request} in flight", hint="`swiftlmctl requests`")
