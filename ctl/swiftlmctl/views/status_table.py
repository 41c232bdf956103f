"""Lays out a daemon's status: a few lines, gauges, one row for each model."""

from __future__ import annotations

import datetime
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING  # Any: JSON values

from swiftlmctl import output
from swiftlmctl.output import Table, duration_text, size_text

if TYPE_CHECKING:
    from rich.text import Text

    from swiftlm_proto import messages as m
    from swiftlmctl.service import ServiceState


def lines(status: m.DaemonStatus, service: ServiceState | None = None) -> list[str]:
    """The whole picture as text."""
    found = [
        f"swiftlmd {status.version} {status.state or 'ready'}, pid {status.pid}, "
        f"up {duration_text(status.uptime_s)}, {_addresses(status)}{_supervised(service)}",
        _counts(status),
    ]
    if status.machine is not None:
        found += machine_lines(status.machine)
    found += ["", *_models(status)]
    found += [line for model in status.models if (line := _disk_line(model))]
    found += [line for model in status.models for line in _note_lines(model)]
    found += [_download(d) for d in status.downloads]
    found += [f"warning: {warning}" for warning in status.warnings]
    if not output.on_terminal():
        return found
    width = output.terminal_width()
    return [part for line in found for part in output.wrapped(line, width, 9).split("\n")]


def _addresses(status: m.DaemonStatus) -> str:
    encrypted = f" and https://{status.https_address}" if status.https_address else ""
    return f"http://{status.http_address}{encrypted}"


def machine_lines(machine: m.MachineStatus) -> list[str]:
    device = machine.device_name or machine.device
    # Its name and version; what follows are the flags that it was built with.
    extra = [f"BLAS {' '.join(machine.blas.split()[:2])}"] if machine.blas else []
    extra += [f"pressure {machine.pressure}"] if machine.pressure else []
    extra += [f"thermal {machine.thermal}"] if machine.thermal else []
    if machine.swap_used_bytes:
        extra.append(f"swap {size_text(machine.swap_used_bytes)}")
    found = ["  ".join([f"device   {device}", *extra])]
    if machine.budget_bytes:
        fraction = machine.used_bytes / machine.budget_bytes
        found.append(
            f"budget   {output.bar(fraction)} {size_text(machine.used_bytes)} of "
            f"{size_text(machine.budget_bytes)}, measured {size_text(machine.measured_bytes)}"
        )
    if machine.memory_bytes:
        used = machine.memory_bytes - machine.available_bytes
        found.append(
            f"memory   {output.bar(used / machine.memory_bytes)} {size_text(used)} of "
            f"{size_text(machine.memory_bytes)}, {size_text(machine.available_bytes)} available"
        )
    return found


def one_line(status: m.DaemonStatus) -> str:
    """For a pipe: one line for each moment."""
    now = datetime.datetime.now().strftime("%H:%M:%S")
    decode, prefill = speeds(status)
    used = status.machine.used_bytes if status.machine else 0
    return (
        f"{now} {status.state} in_flight={status.in_flight} requests={status.requests} "
        f"errors={status.errors} decode={decode:.1f}tok/s prefill={prefill:.1f}tok/s "
        f"used={size_text(used)}"
    )


def speeds(status: m.DaemonStatus) -> tuple[float, float]:
    stats = [model.stats for model in status.models if model.stats is not None]
    return (
        sum(stat.decode_tokens_per_s for stat in stats),
        sum(stat.prefill_tokens_per_s for stat in stats),
    )


async def live(stream: AsyncIterator[m.DaemonStatus]) -> None:
    """The picture on a terminal, redrawn with each message."""
    from rich.console import Group
    from rich.live import Live

    fastest = 1.0
    with Live(auto_refresh=False) as screen:
        async for status in stream:
            decode, _ = speeds(status)
            fastest = max(fastest, decode)
            gauge = f"speed    {output.bar(decode / fastest)} {decode:.1f} tok/s"
            rows = [*lines(status), gauge]
            screen.update(Group(*map(_cut, rows)), refresh=True)


def _cut(row: str) -> Text:
    """A row that wraps now and then would make the picture jump; a warning is read to its end."""
    from rich.text import Text

    return Text(row, no_wrap=not row.startswith("warning:"), overflow="ellipsis")


def _supervised(service: ServiceState | None) -> str:
    if service is None:
        return ""
    words = "no supervisor" if service.manager == "none" else service.manager
    return f", {words}{'' if service.enabled or service.manager == 'none' else ' (not at login)'}"


def _counts(status: m.DaemonStatus) -> str:
    decode, prefill = speeds(status)
    return (
        f"requests {status.requests} ({status.in_flight} in flight, {status.errors} failed)  "
        f"decode {decode:.1f} tok/s  prefill {prefill:.1f} tok/s"
    )


def _models(status: m.DaemonStatus) -> list[str]:
    if not status.models:
        return ["no models here yet; `swiftlmctl pull smollm2-135m` fetches a small one"]
    table = model_table(status.models, status.default_model)
    if not output.on_terminal():
        return output.aligned(table)
    return output.fitted(table, output.terminal_width())


def model_table(models: list[m.ModelStatus], default: str = "") -> Table:
    rows = tuple(_model_row(model, default) for model in models)
    columns = ("model", "state", "size", "memory", "context", "pid", "tok/s", "notes")
    return Table(columns, rows, frozenset({"size", "memory", "context", "pid", "tok/s"}))


def _model_row(model: m.ModelStatus, default: str) -> tuple[str, ...]:
    stats = model.stats
    context = model.loaded.context if model.loaded else model.context
    return (
        model.model + (" *" if model.model == default else ""),
        _state_words(model),
        size_text(model.size_bytes) if model.size_bytes else "",
        size_text(model.footprint_bytes) if model.footprint_bytes else "",
        str(context) if context else "",
        str(model.pid) if model.pid else "",
        f"{stats.decode_tokens_per_s:.1f}" if stats and stats.decode_tokens_per_s else "",
        _notes(model),
    )


def _state_words(model: m.ModelStatus) -> str:
    name = (model.state.name or "unknown").lower()
    return f"{name} {model.load_fraction:.0%}" if name == "loading" else name


def _notes(model: m.ModelStatus) -> str:
    notes = [model.error] if model.error else []
    notes += [model.quantization] if model.quantization else []
    notes += _kv_words(model)
    notes += [_streams(found)] if (found := _counters(model)) else []
    split = json.loads(model.plan or "{}").get("gpu_layers")
    notes += [] if split is None else [f"{split} layers on the accelerator, rest on the CPU"]
    notes += ["pinned"] if model.pinned else []
    notes += [f"{model.restarts} restarts"] if model.restarts else []
    if model.stats and (model.stats.running or model.stats.waiting):
        notes.append(f"{model.stats.running} running, {model.stats.waiting} waiting")
    return ", ".join(notes)


def _counters(model: m.ModelStatus) -> m.StreamCounters | None:
    """What its engine read from disk; None where nothing is streamed."""
    return model.stats.stream if model.stats else None


def _streams(found: m.StreamCounters) -> str:
    whole = found.resident_layers
    if found.mode == "layers":
        return f"{found.streamed_layers} of {found.streamed_layers + whole} layers from disk"
    words = f"{found.slots} of {found.num_experts} experts in memory"
    return f"{words}, {whole} layers whole" if whole else words


def _note_lines(model: m.ModelStatus) -> list[str]:
    """What works, but not as asked: said at the load, and here for who did not see that."""
    loaded, stats = model.loaded, model.stats
    weights = (stats.weights_note if stats else "") or (loaded.weights_note if loaded else "")
    notes = [*(loaded.notes if loaded else []), *([weights] if weights else [])]
    return [f"note     {model.model}: {note}" for note in notes]


def _disk_line(model: m.ModelStatus) -> str:
    found = _counters(model)
    if not found:
        return ""
    words = [
        f"{found.reads} reads, {size_text(found.bytes)} at {found.gb_per_s:.2f} GB/s",
        f"{found.hit_rate:.0%} hits, {found.evictions} evictions",
    ]
    if found.syncs:
        words.append(f"{found.sync_s / found.syncs * 1e3:.2f} ms per wait")
    if found.prefetched:
        words.append(f"{found.prefetch_used} of {found.prefetched} prefetched used")
    if found.read_errors:
        words.append(f"{found.read_errors} reads failed")
    words += [f"degraded: {problem}" for problem in found.problems]
    return f"disk     {model.model}: {', '.join(words)}"


def _kv_words(model: m.ModelStatus) -> list[str]:
    """The format and its layers, then what a token of the running sequences really takes."""
    loaded, stats = model.loaded, model.stats
    if loaded is None or not loaded.kv:
        return []
    formats = json.loads(loaded.kv_report or "{}").get("layers", [])
    compressed = sum(format != "fp16" for format in formats)
    words = f"kv {loaded.kv}"
    if 0 < compressed < len(formats):
        words += f" in {compressed} of {len(formats)} layers"
    if stats is None or not stats.kv_tokens:
        return [words]
    words += f", {size_text(stats.kv_bytes // stats.kv_tokens)} a token"
    if compressed:
        words += f", {stats.kv_compressed_tokens} of {stats.kv_tokens} tokens compressed"
    return [words]


def _download(download: m.DownloadStatus) -> str:
    fraction = download.done_bytes / download.total_bytes if download.total_bytes else 0.0
    left = f", {duration_text(download.eta_s)} left" if download.eta_s else ""
    return (
        f"pull     {output.bar(fraction)} {download.model} {size_text(download.done_bytes)} of "
        f"{size_text(download.total_bytes)}, {size_text(int(download.bytes_per_s))}/s{left}"
        + (f" {download.error}" if download.error else "")
    )
