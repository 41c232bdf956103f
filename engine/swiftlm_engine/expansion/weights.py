"""Replaces quantized modules of a model by the same weights as float32, and puts them back.

MLX's CPU back end multiplies float32 many times faster than it does quantized weights. Only the MLX
thread calls this, at load and between two steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.mla import MultiLinear, QuantizedMultiLinear

from swiftlm_engine.brain.facts import Sublayer, block_of, layer_of
from swiftlm_engine.brain.plan import gigabytes
from swiftlm_engine.expansion.gain import Gain
from swiftlm_engine.expansion.options import ExpandOptions
from swiftlm_engine.expansion.orientation import orient

# A head of 150,000 rows is unpacked piece by piece: that takes several times its result.
_PIECE_BYTES = 32 << 20
_LOOKED_UP = "embed_tokens_per_layer"  # single rows of it are read, nothing is multiplied with it

log = logging.getLogger(__name__)

Report = Callable[[float, str], None]  # fraction, detail


class ExpandedWeights:
    """The float32 modules of one model. `reopen` gives the packed ones again, unread.

    `freed_bytes`: what the model holds less than it did when it was loaded.
    """

    def __init__(
        self, model: nn.Module, options: ExpandOptions, reopen: Callable[[], nn.Module]
    ) -> None:
        self._model = model
        self._options = options
        self._reopen = reopen
        self._paths: list[str] = []
        self._gain = ""
        self.expanded_bytes = 0
        self.freed_bytes = 0

    @property
    def expanded(self) -> bool:
        return bool(self._paths)

    @property
    def whole(self) -> bool:
        """Whether nothing is multiplied with packed weights any more, such as experts."""
        modules = self._model.modules()
        return not any("scales" in m and not isinstance(m, nn.QuantizedEmbedding) for m in modules)

    @property
    def note(self) -> str:
        """For `load` and `status`: how it is now."""
        if not self.expanded:
            return "weights are quantized again, since memory is short: slower than when loaded"
        what = "weights" if self.whole else "some of the weights"
        return f"{what} expanded to float32: {gigabytes(self.expanded_bytes)}{self._gain}"

    def load(self, report: Report) -> None:
        """The first time: also measures what that gains."""
        gain = Gain()
        for path, module in _packed(self._model, self._options):
            gain.before(path, module)
        self.expand(report)
        modules = dict(self._model.named_modules())
        one, many = gain.ratios({path: modules[path] for path in self._paths})
        self._gain = f"; one row is multiplied {_times(one)} as fast, sixteen {_times(many)}"

    def expand(self, report: Report | None = None) -> None:
        """Evaluated, one module after the other: no more than one is there twice."""
        if self.expanded:
            return
        chosen = dict(_packed(self._model, self._options))
        for number, (path, module) in enumerate(chosen.items()):
            before = _held(module)
            floats = _as_floats(module)
            mx.eval(floats.parameters())
            _put(self._model, path, floats)
            self.expanded_bytes += floats["weight"].nbytes
            if self.freed_bytes:
                self.freed_bytes -= _held(floats) - before
            if report is not None:
                report((number + 1) / len(chosen), f"{self.expanded_bytes / 1e9:.1f} GB as float32")
        self._paths = list(chosen)
        orient(self._model)
        mx.clear_cache()

    def give_back(self) -> None:
        """The weights are packed as on disk again. Raises OSError, ValueError or RuntimeError where
        the files cannot be read; what has been put back by then stays so."""
        if not self.expanded:
            return
        packed = dict(self._reopen().named_modules())
        while self._paths:
            path = self._paths[-1]
            module = packed.pop(path)
            mx.eval(module.parameters())
            floats = _at(self._model, path)
            _put(self._model, path, module)
            self.expanded_bytes -= floats["weight"].nbytes
            self.freed_bytes += _held(floats) - _held(module)
            self._paths.pop()
        mx.clear_cache()


def _packed(model: nn.Module, options: ExpandOptions) -> Iterator[tuple[str, nn.Module]]:
    """The quantized modules to expand; experts are none of them."""
    modules = dict(model.named_modules())
    tied = not any("lm_head" in path.split(".") for path in modules)
    for path, module in modules.items():
        kind = type(module)
        if kind not in _FLOATS or "global_scale" in module or not _takes(options, path):
            continue
        if kind is nn.QuantizedEmbedding and (not tied or _LOOKED_UP in path.split(".")):
            continue
        yield path, module


def _takes(options: ExpandOptions, path: str) -> bool:
    layer, block = layer_of(f"{path}."), block_of(path)
    if layer is None or block is Sublayer.ENDS:
        return options.head
    return layer < (options.attention_layers if block is Sublayer.ATTENTION else options.mlp_layers)


def _as_floats(module: nn.Module) -> nn.Module:
    floats = _FLOATS[type(module)]()
    floats.weight = _unpacked(module)
    if "bias" in module:
        floats.bias = module["bias"]
    floats.freeze()
    return floats.eval()


_FLOATS: dict[type[nn.Module], Callable[[], nn.Module]] = {
    nn.QuantizedLinear: lambda: nn.Linear(1, 1, bias=False),
    nn.QuantizedEmbedding: lambda: nn.Embedding(1, 1),
    QuantizedMultiLinear: lambda: MultiLinear(1, 1, 1),
}


def _unpacked(module: Any) -> mx.array:  # Any: the quantized modules share attributes, no base
    """Large ones in pieces of rows, each written into its place."""
    weight, scales, biases = module["weight"], module["scales"], module.get("biases")
    columns = weight.shape[-1] * 32 // module.bits
    rows = weight.shape[0]
    row_bytes = 4 * columns * (weight.size // (rows * weight.shape[-1]))
    step = max(1, _PIECE_BYTES // row_bytes)
    whole: mx.array | None = None
    for start in range(0, rows, step):
        part = slice(start, start + step)
        piece = mx.dequantize(
            weight[part],
            scales=scales[part],
            biases=None if biases is None else biases[part],
            group_size=module.group_size,
            bits=module.bits,
            mode=module.mode,
            dtype=mx.float32,
        )
        if step >= rows:
            return piece
        if whole is None:
            whole = mx.zeros((*weight.shape[:-1], columns))
        whole[part] = piece
        mx.eval(whole)
    assert whole is not None
    return whole


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < 10 else f"{ratio:.0f} times"


def _held(module: nn.Module) -> int:
    return sum(array.nbytes for array in module.values() if isinstance(array, mx.array))


def _at(model: nn.Module, path: str) -> Any:  # Any: modules and lists of them
    place: Any = model
    for name in path.split("."):
        place = place[int(name)] if name.isdecimal() else place[name]
    return place


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    place = _at(model, parent) if parent else model
    place[int(name) if name.isdecimal() else name] = module
