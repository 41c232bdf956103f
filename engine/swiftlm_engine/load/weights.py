"""From a model folder to a model in memory, with progress.

Weights are opened lazily and strictly (every parameter must come from a file, every tensor must
have a place) and then read layer by layer, so that a load can be watched and its peak is its size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model, load_tokenizer

from swiftlm_engine.brain.facts.config import read_config
from swiftlm_engine.brain.plan.rank_files import missing_files
from swiftlm_engine.expansion.options import ExpandOptions
from swiftlm_engine.expansion.orientation import orient
from swiftlm_engine.expansion.weights import ExpandedWeights
from swiftlm_engine.load.device import Device
from swiftlm_engine.messages import EngineFault, FaultKind
from swiftlm_engine.split import cpu_gpu
from swiftlm_engine.split.shares import Place, take_share
from swiftlm_engine.streaming.install import install
from swiftlm_engine.streaming.report import StreamingReport, StreamOptions
from swiftlm_engine.text.detokenizer import bare

Report = Callable[[str, float, str], None]  # stage, fraction of the load, detail


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """A model that is in memory. The engine thread owns it."""

    model: Any
    tokenizer: Any
    config: dict[str, Any]
    weight_bytes: int
    dtype: str
    streaming: StreamingReport | None = None
    notes: tuple[str, ...] = ()  # where its layers compute, if not all in one place
    expanded: ExpandedWeights | None = None


NOTHING_EXPANDED = ExpandOptions()
DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
_LACKING = re.compile(r"missing \d+ required positional arguments?: (.+)", re.DOTALL)


def load_weights(
    folder: Path,
    dtype: str,
    device: Device,
    report: Report,
    stream: StreamOptions | None = None,
    gpu_layers: int | None = None,
    place: Place | None = None,
    expand: ExpandOptions = NOTHING_EXPANDED,
) -> LoadedWeights:
    """With a `place` in a group, this rank's share of the weights.

    Raises `EngineFault(MODEL_BROKEN)` naming the file or tensor at fault.
    """
    report("reading", 0.0, "config and headers")
    if lacking := missing_files(folder, place.share if place else None):
        message = f"{folder} holds a share of the model; it is without {min(lacking)}"
        raise EngineFault(FaultKind.MODEL_BROKEN, message)
    model, tokenizer, config = _opened(folder)
    _set_dtype(model, dtype, device)
    model.eval()
    streaming = None
    if stream is not None:  # before anything is evaluated: no bank of experts is read whole
        streaming = install(model, read_config(folder).model_type, folder, stream)
    notes = _split(model, gpu_layers, stream)
    needed = [model]
    if place is not None:
        needed = take_share(model, place)
        notes = (*notes, place.note)
    expanded = _expanded(model, folder, dtype, device, expand, report)
    # A second run from 0 to 100 % for the little that is left would only puzzle.
    whole = expanded is not None and expanded.whole
    weight_bytes = _read_weights(needed, _silent if whole else report)
    if device is Device.CPU and stream is None and place is None:
        orient(model)
    return LoadedWeights(
        model,
        tokenizer,
        config,
        weight_bytes,
        _dtype_name(model),
        streaming,
        notes,
        expanded,
    )


def _expanded(
    model: Any, folder: Path, dtype: str, device: Device, expand: ExpandOptions, report: Report
) -> ExpandedWeights | None:
    if not expand.wanted or device is not Device.CPU:
        return None

    def reopen() -> Any:
        again, _ = load_model(folder, lazy=True, strict=True)
        _set_dtype(again, dtype, device)
        return again

    expanded = ExpandedWeights(model, expand, reopen)
    try:
        expanded.load(lambda fraction, detail: report("weights", fraction, detail))
    except RuntimeError as error:
        raise EngineFault(FaultKind.MODEL_BROKEN, f"weights cannot be read: {error}") from error
    return expanded


def _opened(folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """Model, tokenizer and config; no weight is read yet."""
    try:
        model, config = load_model(folder, lazy=True, strict=True)
        tokenizer = load_tokenizer(folder, eos_token_ids=_eos_ids(config))
        _take_processor_template(tokenizer, folder / "chat_template.json")
    except (ValueError, LookupError, TypeError, AttributeError, OSError, RuntimeError) as error:
        raise EngineFault(
            FaultKind.MODEL_BROKEN, f"model folder {folder} cannot be loaded: {_plainly(error)}"
        ) from error
    return model, tokenizer, config


def _plainly(error: Exception) -> str:
    """What mlx-lm's dataclasses miss, without their names."""
    lacking = _LACKING.search(str(error))
    return f"config.json lacks {lacking[1]}" if lacking else str(error)


def _eos_ids(config: dict[str, Any]) -> int | list[int] | None:
    """Raises ValueError where they are no token ids."""
    ids: Any = config.get("eos_token_id")
    listed = ids if isinstance(ids, list) else [] if ids is None else [ids]
    if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in listed):
        raise ValueError(f"eos_token_id in config.json is no token id: {str(ids)[:100]}")
    found: int | list[int] | None = ids
    return found


def _split(model: Any, gpu_layers: int | None, stream: StreamOptions | None) -> tuple[str, ...]:
    """On a machine without an accelerator both parts are the CPU's, on two of its streams."""
    if gpu_layers is None:
        return ()
    if stream is not None:
        raise EngineFault(
            FaultKind.UNSUPPORTED,
            "weights are read from disk for the accelerator only; load with --gpu-layers all, "
            "or with --stream-experts off",
            param="gpu_layers",
        )
    return (cpu_gpu.install(model, gpu_layers, mx.new_stream(mx.cpu)),)


def _take_processor_template(tokenizer: Any, file: Path) -> None:
    """Some vision models keep their template where only a processor looks for it."""
    inner = bare(tokenizer)
    if inner.chat_template is None and file.is_file():
        inner.chat_template = json.loads(file.read_text())["chat_template"]


def chosen_dtype(dtype: str, device: Device) -> str:
    """What a load on `device` takes where `dtype` leaves it open; `auto`: as it is stored."""
    # 16-bit matmul on MLX's CPU back end goes through no BLAS and is many times slower.
    return dtype or ("float32" if device is Device.CPU else "auto")


def _set_dtype(model: Any, dtype: str, device: Device) -> None:
    wanted = chosen_dtype(dtype, device)
    if wanted == "auto":
        return
    if wanted not in DTYPES:
        known = ", ".join(DTYPES)
        raise EngineFault(
            FaultKind.INVALID, f"dtype '{wanted}' is not one of {known}", param="dtype"
        )
    model.set_dtype(DTYPES[wanted])


def _silent(stage: str, fraction: float, detail: str) -> None:
    pass


def _read_weights(needed: list[Any], report: Report) -> int:
    """Evaluates the parameters in file order, in pieces; returns their bytes."""
    # Once each: streamed layers share the arrays of their banks.
    named = (pair for module in needed for pair in tree_flatten(module.parameters()))
    parameters = list({id(array): array for _, array in named}.values())
    total = sum(array.nbytes for array in parameters)
    done = 0
    piece: list[mx.array] = []
    piece_bytes = 0
    for array in parameters:
        piece.append(array)
        piece_bytes += array.nbytes
        if piece_bytes >= 256 << 20:
            done += _read_piece(piece)
            piece, piece_bytes = [], 0
            report("weights", done / total, f"{done / 1e9:.1f} of {total / 1e9:.1f} GB")
    done += _read_piece(piece)
    report("weights", 1.0, f"{total / 1e9:.1f} GB")
    return total


def _read_piece(arrays: list[mx.array]) -> int:
    try:
        mx.eval(arrays)
    except RuntimeError as error:
        raise EngineFault(FaultKind.MODEL_BROKEN, f"weights cannot be read: {error}") from error
    return sum(array.nbytes for array in arrays)


def _dtype_name(model: Any) -> str:
    floats = [a.dtype for _, a in tree_flatten(model.parameters()) if a.dtype in DTYPES.values()]
    names = {str(dtype).rsplit(".", 1)[-1] for dtype in floats}
    return "+".join(sorted(names)) or "none"
