"""Shows an operation (load, pull, calibrate) while it runs: a bar, plain lines, or JSON lines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from swiftlmctl import client, output
from swiftlmctl.errors import CtlError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from swiftlm_proto import messages as m

# In a pipe one line for each stage and for each tenth is enough.
_PLAIN_STEPS = 10


async def follow(
    events: AsyncIterator[m.OperationEvent], title: str, *, json: bool, aside: bool = False
) -> m.OperationEvent:
    """Reads to the end; the closing event. Raises `CtlError` when the operation failed.

    `aside`: on the error stream, since the other carries an answer.
    """
    if json:
        shown = _json_lines(events)
    elif aside:
        shown = _bar(events, title, aside=True)
    elif output.on_terminal():
        shown = _bar(events, title)
    else:
        shown = _lines(events, title)
    last: m.OperationEvent | None = None
    async for event in shown:
        last = event
    if last is not None:
        client.check(last.fault)
    if last is None or not last.done:
        raise CtlError(f"{title}: swiftlmd stopped before it was done")
    return last


async def _json_lines(events: AsyncIterator[m.OperationEvent]) -> AsyncIterator[m.OperationEvent]:
    async for event in events:
        output.show_json_line(event)
        yield event


async def _lines(
    events: AsyncIterator[m.OperationEvent], title: str
) -> AsyncIterator[m.OperationEvent]:
    said: tuple[str, int] | None = None
    async for event in events:
        step = (event.stage, int(event.fraction * _PLAIN_STEPS))
        if step != said and not event.done and event.fault is None:
            output.say(f"{title}: {_words(event)}")
            said = step
        yield event


async def _bar(
    events: AsyncIterator[m.OperationEvent], title: str, *, aside: bool = False
) -> AsyncIterator[m.OperationEvent]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[words]}", style="dim"),
    )
    with Progress(*columns, transient=True, console=Console(stderr=aside)) as progress:
        task = progress.add_task(title, total=1.0, words="")
        async for event in events:
            _advance(progress, task, event)
            yield event


def _advance(progress: Progress, task: TaskID, event: m.OperationEvent) -> None:
    progress.update(task, completed=event.fraction, words=_beside_bar(event))


def _beside_bar(event: m.OperationEvent) -> str:
    return _numbers(event) or " ".join(part for part in (event.stage, event.detail) if part)


def _words(event: m.OperationEvent) -> str:
    parts = [event.stage, f"{event.fraction:.0%}", event.detail, _numbers(event)]
    return " ".join(part for part in parts if part)


def _numbers(event: m.OperationEvent) -> str:
    parts = []
    if event.total_bytes:
        done, total = output.size_text(event.done_bytes), output.size_text(event.total_bytes)
        parts.append(f"{done} of {total}")
    if event.bytes_per_s:
        parts.append(f"{output.size_text(int(event.bytes_per_s))}/s")
    if event.eta_s:
        parts.append(f"{output.duration_text(event.eta_s)} left")
    return ", ".join(parts)
