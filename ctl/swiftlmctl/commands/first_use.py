"""What `run`, `chat` and `load` do first: fetch a model that is not here, and show the load.

All of it goes to the error stream, so that the answer alone is on the other.
"""

from __future__ import annotations

import json
import sys

from swiftlm_proto import messages as m
from swiftlmctl import client, output
from swiftlmctl.errors import CtlError
from swiftlmctl.views import progress


async def loaded(daemon: client.Daemon, model: str, *, yes: bool) -> None:
    """The model is here and ready, with both shown on a terminal."""
    await fetched(daemon, model, yes=yes)
    status = await daemon.admin.status(m.StatusRequest())
    name = model or status.default_model
    ready = any(
        row.model == name and row.state is m.ModelStatusState.READY for row in status.models
    )
    if not ready and sys.stderr.isatty():
        steps = daemon.admin.load(m.LoadModelRequest(model=model))
        await progress.follow(steps, f"load {name}", json=False, aside=True)


async def fetched(daemon: client.Daemon, model: str, *, yes: bool) -> None:
    """Fetches a hub model that is not here, after a question at a terminal; others it leaves to the
    verb, whose error names the nearest."""
    if not model or model.startswith("/") or await _is_here(daemon, model):
        return
    reply = await daemon.admin.plan(m.PlanModelRequest(model=model))
    if reply.fault is not None:
        if yes and "/" in model:
            client.check(reply.fault)
        return
    plan = json.loads(reply.plan)
    if plan.get("here", True):
        return
    size = output.size_text(plan["checkpoint_bytes"])
    if not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            hint = f"`swiftlmctl pull {model}` fetches it, or give --yes"
            raise CtlError(f"{model} is not here; it takes {size} to fetch", hint=hint)
        _ask(model, size, plan)
    steps = daemon.admin.pull(m.PullRequest(model=model))
    await progress.follow(steps, f"pull {model}", json=False, aside=True)


def _ask(model: str, size: str, plan: dict[str, object]) -> None:
    import typer

    sys.stderr.write(f"{model} is not here. Here it would be: {plan.get('summary')}\n")
    typer.confirm(f"Fetch {size} now?", default=True, abort=True, err=True)


async def _is_here(daemon: client.Daemon, model: str) -> bool:
    """By its own name: the usual case, and quick. Of other names the plan says it."""
    reply = await daemon.admin.list_models(m.ListModelsRequest())
    return any(row.model == model for row in reply.models)
