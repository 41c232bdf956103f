"""`cluster plan|pull|add|remove|list|check`: one model over several machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from swiftlm_proto.exit_codes import CtlExit
from swiftlm_proto.load_options import GROUP
from swiftlmctl.commands.load_flags import takes_load_options
from swiftlmctl.commands.options import Json, Model

if TYPE_CHECKING:
    from swiftlm_proto import messages as m

Name = Annotated[str, typer.Argument(help="Name of the host.")]
Agent = Annotated[
    str,
    typer.Option(metavar="HOST[:PORT]", help="Where its `swiftlmd join` listens; default: NAME."),
]

Ssh = Annotated[bool, typer.Option("--ssh", help="Reach it by `ssh NAME`; it runs no agent.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="One model over several machines.", no_args_is_help=True)
    group.command()(takes_load_options(plan, GROUP))
    group.command()(pull)
    group.command()(add)
    group.command()(remove)
    group.command("list")(list_hosts)
    group.command()(check)
    app.add_typer(group, name="cluster")


def plan(
    model: Model,
    options: m.LoadOptions,
    json: Json = False,
) -> None:
    """Show how a model would be split across machines."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.views import cluster_table

    async def verb(daemon: client.Daemon) -> m.PlanGroupReply:
        return await daemon.cluster.plan(m.PlanGroupRequest(model=model, options=options))

    reply = client.call(verb)
    client.check(reply.fault)
    if json:
        output.show_json({**output.plain(reply.plan), "problems": reply.left_out})
    else:
        cluster_table.show_plan(reply)


def pull(model: Model, json: Json = False) -> None:
    """Have each host fetch its share of a model; goes on if cut."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.views import progress

    async def verb(daemon: client.Daemon) -> m.OperationEvent:
        events = daemon.cluster.pull(m.PullGroupRequest(model=model))
        return await progress.follow(events, f"cluster pull {model}", json=json)

    last = client.call(verb)
    if not json:
        output.say(f"{model}: {last.detail}")


def add(name: Name, agent: Agent = "", ssh: Ssh = False, json: Json = False) -> None:
    """Add a host after checking it."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.views import cluster_table

    if agent and ssh:
        raise typer.BadParameter("--agent and --ssh are two ways to one host")
    where = "" if ssh else agent or name

    async def verb(daemon: client.Daemon) -> m.AddHostReply:
        return await daemon.cluster.add(m.AddHostRequest(name=name, agent=where))

    reply = client.call(verb)
    client.check(reply.fault)
    if reply.check is None:
        return
    if json:
        output.show_json(reply.check)
    else:
        cluster_table.show_checks([reply.check])
    if reply.check.problems:
        output.warn(f"'{name}' was not added")
        raise typer.Exit(int(CtlExit.FAILED))
    if not json:
        output.say(f"'{name}' is rank {reply.check.host.rank if reply.check.host else 0}")


def remove(name: Name) -> None:
    """Remove a host; loaded models keep using it until unloaded."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output

    async def verb(daemon: client.Daemon) -> m.RemoveHostReply:
        return await daemon.cluster.remove(m.RemoveHostRequest(name=name))

    client.check(client.call(verb).fault)
    output.say(f"'{name}' is removed")


def list_hosts(json: Json = False) -> None:
    """List the hosts in rank order."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.views import cluster_table

    async def verb(daemon: client.Daemon) -> m.ListHostsReply:
        return await daemon.cluster.list(m.ListHostsRequest())

    found = client.call(verb)
    if json:
        output.show_json(found)
    else:
        cluster_table.show_hosts(found)


def check(
    model: Annotated[str, typer.Argument(help="A model that should be on every host.")] = "",
    json: Json = False,
) -> None:
    """Check every host; exit 1 if one has a problem."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.views import cluster_table

    async def verb(daemon: client.Daemon) -> m.CheckHostsReply:
        return await daemon.cluster.check(m.CheckHostsRequest(model=model))

    reply = client.call(verb)
    client.check(reply.fault)
    if json:
        output.show_json({"hosts": reply.checks})
    else:
        cluster_table.show_checks(reply.checks)
    if any(found.problems for found in reply.checks):
        raise typer.Exit(int(CtlExit.FAILED))
