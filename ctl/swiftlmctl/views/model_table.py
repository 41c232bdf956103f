"""How models look on the terminal: those that are here, those that the hub offers, one alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from swiftlmctl import output
from swiftlmctl.output import Table, size_text

if TYPE_CHECKING:
    from swiftlm_proto import messages as m

_COLUMNS = ("model", "size", "fit", "context", "tok/s", "licence", "notes")
_RIGHT = frozenset({"size", "context", "tok/s"})
_OFFER_MARKS = ("here", "gated", "tools", "reasoning", "vision")


def listed_table(
    found: list[m.ModelStatus], fits: Mapping[str, m.ModelFit], daemon: m.DaemonStatus
) -> Table:
    """Those on the disk, each with the plan's verdict; `*` marks the default."""
    coming = {download.model: download for download in daemon.downloads}
    rows = []
    for status in found:
        name = status.model + (" *" if status.model == daemon.default_model else "")
        if download := coming.get(status.model):
            rows.append((name, "downloading", size_text(download.total_bytes), *[""] * 5))
        else:
            rows.append((name, *_listed(status, fits.get(status.model))))
    return Table(("model", "state", *_COLUMNS[1:]), tuple(rows), _RIGHT)


def offers_table(models: list[m.OfferedModel]) -> Table:
    return Table(_COLUMNS, tuple(map(_offer, models)), _RIGHT)


def facts(status: m.ModelStatus, fit: m.ModelFit | None) -> dict[str, Any]:
    """Everything that is known of one model; counts of zero say nothing and are left out."""
    known = {k: v for k, v in output.plain(status).items() if v or isinstance(v, bool)}
    if status.expires_at:
        known["expires_at"] = f"{datetime.fromtimestamp(status.expires_at):%Y-%m-%d %H:%M:%S}"
    if fit is None:
        return known
    verdict = {
        "verdict": fit_words(fit),
        "detail": fit.detail,
        "context": fit.context or None,
        "tokens/s": speed_words(fit),
        "needed_bytes": fit.needed_bytes,
        "available_bytes": fit.available_bytes,
    }
    return known | {"fit": verdict}


def fit_words(fit: m.ModelFit | None) -> str:
    """`fits`, or `~ tight` where it is an estimate."""
    if fit is None or fit.verdict == "unknown":
        return "?"
    return f"~ {fit.verdict}" if fit.estimated else fit.verdict


def speed_words(fit: m.ModelFit | None) -> str:
    if fit is None or not fit.decode_high:
        return ""
    return f"{_rate(fit.decode_low)}-{_rate(fit.decode_high)}"


def _rate(value: float) -> str:
    """Two digits, as a prediction deserves: 0.04, 3.5, 120."""
    return f"{float(f'{value:.2g}'):.0f}" if value >= 10 else f"{value:.2g}"


def _listed(status: m.ModelStatus, fit: m.ModelFit | None) -> tuple[str, ...]:
    notes = [status.error] if status.error else []
    notes += [mark for mark in ("tools", "vision", "pinned") if getattr(status, mark)]
    notes += [status.quantization] if status.quantization else []
    context = (fit.context if fit else 0) or status.context
    return (
        (status.state.name or "unknown").lower(),
        size_text(status.size_bytes) if status.size_bytes else "",
        "" if status.error else fit_words(fit),
        str(context) if context else "",
        speed_words(fit),
        status.licence,
        ", ".join(notes),
    )


def _offer(model: m.OfferedModel) -> tuple[str, ...]:
    context = (model.fit.context if model.fit else 0) or model.context
    notes = [mark for mark in _OFFER_MARKS if getattr(model, mark)]
    notes += [model.quantization] if model.quantization else []
    return (
        model.model,
        size_text(model.size_bytes) if model.size_bytes else "",
        fit_words(model.fit),
        str(context) if context else "",
        speed_words(model.fit),
        model.licence,
        ", ".join(notes),
    )
