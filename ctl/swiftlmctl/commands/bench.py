"""`bench`: measures the live daemon; a menu when run bare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swiftlmctl.commands.options import Json, OptionalModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from swiftlmctl.bench.endpoint import Endpoint
    from swiftlmctl.bench.report import Report
    from swiftlmctl.bench.session import Session

Runs = Annotated[int, typer.Option(min=1, help="Measurements of each cell, after a warm-up.")]
Out = Annotated[Path, typer.Option("--out", help="Folder of the page, the plots and the JSON.")]
Key = Annotated[str, typer.Option("--key", envvar="SWIFTLM_API_KEY", help="API key.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Shorter texts and fewer checks; the report is named so.")
]
HERE = Path()


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Measure the running service.", invoke_without_command=True)
    group.callback()(menu)
    for verb in (context, cache, models, agents, quality, compare):
        group.command()(verb)
    app.add_typer(group, name="bench")


def menu(chosen: typer.Context) -> None:
    """Measure the running service; without a verb, choose one."""
    if chosen.invoked_subcommand is not None:
        return
    if not sys.stdin.isatty():
        typer.echo(chosen.get_help())
        raise typer.Exit(2)
    verbs: dict[str, Callable[[], None]] = {
        "1": context,
        "2": cache,
        "3": models,
        "4": agents,
        "5": quality,
    }
    for number, verb in verbs.items():
        typer.echo(f"  {number}  {verb.__name__:9} {verb.__doc__}")
    answer = typer.prompt("Which", default="1")
    if answer not in verbs:
        raise typer.Exit(2)
    verbs[answer]()


def context(
    model: OptionalModel = "",
    contexts: Annotated[str, typer.Option(help="Token counts, with commas.")] = "512,40000,100000",
    configurations: Annotated[
        str, typer.Option(help="Of vanilla, turbo, SSD, SSD + turbo, with commas.")
    ] = "vanilla,turbo,SSD,SSD + turbo",
    runs: Runs = 3,
    out: Out = HERE,
    key: Key = "",
    json: Json = False,
) -> None:
    """Speed and memory over context lengths and ways of running."""
    from swiftlmctl.bench import context as bench
    from swiftlmctl.bench.report import Report
    from swiftlmctl.errors import CtlError

    names = [name.strip() for name in configurations.split(",")]
    if unknown := set(names) - set(bench.CONFIGURATIONS):
        raise CtlError(f"no configuration {', '.join(sorted(unknown))}")
    try:
        lengths = [int(text) for text in contexts.split(",")]
    except ValueError:
        raise CtlError(f"--contexts {contexts}: give numbers, with commas") from None
    session = _session(model, runs, key)
    report = Report(f"context {session.endpoint.model}", bench.COLUMNS, "generation")
    with session.given_back():
        _measure(report, lambda: bench.fill(report, session, lengths, names))
    _finish(report, out, json)


def cache(
    model: OptionalModel = "",
    quick: Quick = False,
    out: Out = HERE,
    key: Key = "",
    json: Json = False,
) -> None:
    """Check that the prefix cache hits and the text stays the same."""
    from swiftlmctl.bench import cache as bench
    from swiftlmctl.bench.report import Report

    session = _session(model, 1, key)
    name = _name("cache", session, quick)
    report = Report(name, bench.COLUMNS, "first token")
    _measure(report, lambda: bench.fill(report, session, bench.QUICK if quick else bench.FULL))
    _finish(report, out, json)


def models(
    names: Annotated[str, typer.Option("--models", help="Names, with commas.")] = "",
    runs: Runs = 3,
    out: Out = HERE,
    key: Key = "",
    json: Json = False,
) -> None:
    """One table over several models."""
    from swiftlmctl.bench import models_table as bench
    from swiftlmctl.bench.report import Report

    wanted = [name.strip() for name in names.split(",") if name.strip()]
    endpoint = _endpoint("", key)
    report = Report("models", bench.COLUMNS, "generation")
    _measure(report, lambda: bench.fill(report, endpoint, wanted, runs))
    _finish(report, out, json)


def agents(
    model: OptionalModel = "",
    runs: Runs = 3,
    quick: Quick = False,
    out: Out = HERE,
    key: Key = "",
    json: Json = False,
) -> None:
    """A recorded tool loop: the wait at each turn."""
    from swiftlmctl.bench import agents as bench
    from swiftlmctl.bench.report import Report

    session = _session(model, runs, key)
    name = _name("agents", session, quick)
    report = Report(name, bench.COLUMNS, "first token")
    _measure(report, lambda: bench.fill(report, session, bench.QUICK if quick else bench.FULL))
    _finish(report, out, json)


def quality(
    model: OptionalModel = "",
    formats: Annotated[str, typer.Option(help="KV formats, with commas.")] = "fp16,k4v3",
    quick: Quick = False,
    out: Out = HERE,
    key: Key = "",
    json: Json = False,
) -> None:
    """Output quality: KV formats vs. fp16, passkey, JSON, tool calls, coherence."""
    from swiftlmctl.bench import quality as bench
    from swiftlmctl.bench.report import Report

    names = [name.strip() for name in formats.split(",")]
    session = _session(model, 1, key)
    sizes = bench.QUICK if quick else bench.FULL
    report = Report(_name("quality", session, quick), bench.COLUMNS)
    with session.given_back():
        _measure(report, lambda: bench.fill(report, session, names, sizes))
    _finish(report, out, json)


def compare(
    url: Annotated[str, typer.Argument(help="Another server's base URL, ending in /v1.")],
    model: OptionalModel = "",
    other_model: Annotated[
        str, typer.Option("--their-model", help="Model name on the other server.")
    ] = "",
    runs: Runs = 5,
    out: Out = HERE,
    key: Key = "",
    their_key: Annotated[
        str, typer.Option("--their-key", help="API key of the other server.")
    ] = "",
    json: Json = False,
) -> None:
    """Compare with another OpenAI-compatible server, in turns."""
    from swiftlmctl.bench import compare as bench
    from swiftlmctl.bench.endpoint import Endpoint
    from swiftlmctl.bench.report import Report

    session = _session(model, runs, key)
    ours = session.endpoint.model
    other = Endpoint(url.rstrip("/"), other_model or ours, their_key)
    report = Report(f"compare {ours} with {other.url}", bench.COLUMNS, "generation")
    _measure(report, lambda: bench.fill(report, session, other))
    _finish(report, out, json)


def _name(verb: str, session: Session, quick: bool) -> str:
    return f"{verb} {session.endpoint.model}" + (", quick" if quick else "")


def _session(model: str, runs: int, key: str) -> Session:
    from swiftlmctl.bench.session import Session

    return Session(_endpoint(model, key), runs)


def _endpoint(model: str, key: str) -> Endpoint:
    from swiftlmctl import client
    from swiftlmctl.bench.endpoint import Endpoint

    async def verb(daemon: client.Daemon) -> Endpoint:
        return Endpoint(f"{daemon.url}/v1", model or daemon.status.default_model, key)

    return client.call(verb)


def _measure(report: Report, fill: Callable[[], None]) -> None:
    """What was measured before the daemon died or Ctrl-C came is worth keeping."""
    from swiftlmctl.bench.session import tell
    from swiftlmctl.errors import CtlError

    try:
        fill()
    except (CtlError, KeyboardInterrupt) as error:
        if not report.rows:
            raise
        report.ended_early = str(error) or "interrupted"
        tell(f"ended early: {report.ended_early}")


def _finish(report: Report, folder: Path, json: bool) -> None:
    """Shows and keeps the results; a promise that was not kept is a failure."""
    from swiftlmctl import output
    from swiftlmctl.bench.report import save

    page = save(report, folder)
    if json:
        output.show_json([report])
    else:
        report.show()
        output.say(f"\nwritten to {page}")
    if report.failed or report.ended_early:
        raise typer.Exit(1)
