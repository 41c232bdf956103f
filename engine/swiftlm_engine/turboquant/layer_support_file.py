"""The outcome of a self-test, and the file it is remembered in. No MLX.

One JSON file per model and mode, written whole or not at all. A file that cannot be read, or is of
another version, counts as none; a folder that cannot be written costs the next load a test.
"""

import json
import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftlm_engine.turboquant.formats import parse_format
from swiftlm_engine.turboquant.layer_support import LayerVerdict, Verdict

_VERSION = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MeasuredError:
    """A verdict with the numbers that carried it."""

    verdict: Verdict
    kld: float  # mean over the text, of the next-token distribution
    layer_errors: tuple[float, ...]  # relative error of the attention output; 0 where exact
    decode_kld: float = 0.0  # of the tokens that were decoded as they are when serving
    # Against plain arithmetic over the same storage, as a share of what rounding may cost;
    # infinite where the storage is damaged.
    path_errors: tuple[float, ...] = ()

    @property
    def path_error(self) -> float:
        return max(self.path_errors, default=0.0)

    def worst_layers(self, count: int = 3) -> list[int]:
        order = sorted(range(len(self.layer_errors)), key=lambda i: -self.layer_errors[i])
        return sorted(order[:count])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the test of one mode came to; `better` passes where the mode does not."""

    measured: MeasuredError
    passed: bool
    better: MeasuredError | None = None


def read_outcome(record: Path, mode: str) -> Outcome | None:
    try:
        kept = json.loads(record.read_text())
        if (kept["version"], kept["mode"]) != (_VERSION, mode):
            return None
        better = None if kept["better"] is None else _measured(kept["better"])
        return Outcome(_measured(kept["measured"]), bool(kept["passed"]), better)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        log.warning("ignoring the damaged kv self-test record %s", record)
        return None


def write_outcome(record: Path, mode: str, outcome: Outcome) -> None:
    text = {
        "version": _VERSION,
        "mode": mode,
        "passed": outcome.passed,
        "measured": _json(outcome.measured),
        "better": None if outcome.better is None else _json(outcome.better),
    }
    half = record.with_name(f"{record.name}.{os.getpid()}.tmp")  # engines may test at the same time
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        half.write_text(json.dumps(text, indent=1))
        half.replace(record)
    except OSError as error:
        log.warning("the kv self-test will run again: %s", error)
        with suppress(OSError):
            half.unlink()


def _measured(kept: Any) -> MeasuredError:  # JSON of unknown origin
    layers = tuple(
        LayerVerdict(i, parse_format(one["format"]) if one["format"] else None, one["reason"])
        for i, one in enumerate(kept["layers"])
    )
    errors = tuple(float(one["error"]) for one in kept["layers"])
    paths = tuple(float(one["path_error"]) for one in kept["layers"])
    return MeasuredError(
        Verdict(layers), float(kept["kld"]), errors, float(kept["decode_kld"]), paths
    )


def _json(measured: MeasuredError) -> dict[str, object]:
    layers = [
        {
            "format": None if layer.format is None else layer.format.name,
            "reason": layer.reason,
            "error": error,
            "path_error": path_error,
        }
        for layer, error, path_error in zip(
            measured.verdict.layers, measured.layer_errors, measured.path_errors, strict=True
        )
    ]
    return {"kld": measured.kld, "decode_kld": measured.decode_kld, "layers": layers}
