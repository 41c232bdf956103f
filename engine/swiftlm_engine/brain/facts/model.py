"""What a plan needs to know about a model, from config.json and headers; nothing is loaded."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swiftlm_engine.brain.facts.checkpoint import read_checkpoint
from swiftlm_engine.brain.facts.config import Config, read_config
from swiftlm_engine.brain.facts.cut_widths import CutWidth, cut_widths
from swiftlm_engine.brain.facts.errors import (
    BadConfig,
    LyingHeader,
    ModelFilesError,
    UnreadableFile,
)
from swiftlm_engine.brain.facts.families import head_size, kv_heads, layer_list
from swiftlm_engine.brain.facts.files import CONFIG_BYTES, read_bounded
from swiftlm_engine.brain.facts.kv import KvFormat, bytes_per_token, is_compressed, store_bytes
from swiftlm_engine.brain.facts.layers import Layer, LayerKind
from swiftlm_engine.brain.facts.quantization import (
    Packing,
    Quantisation,
    declared_packing,
    read_packings,
)
from swiftlm_engine.brain.facts.safetensors import TensorHeader
from swiftlm_engine.brain.facts.sorting import sort_weights
from swiftlm_engine.brain.facts.tower import TowerShape, tower_shape
from swiftlm_engine.brain.facts.weights import WeightPart, Weights
from swiftlm_engine.brain.vision import FAMILIES

_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
_STRETCHED = ("yarn", "deepseek_yarn", "telechat3-yarn", "linear")
_EMBEDDING = ("embed_tokens.", "wte.", "word_embeddings.", "tok_embeddings.", "embeddings.")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that activations have."""

    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_size: int
    expert_size: int


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model folder. Sizes in bytes; `dtype` is what activations and KV have by default.

    `kv_assumed` marks a family whose caches are priced as plain attention for want of a rule.
    """

    path: Path
    model_type: str  # of the language model
    outer_type: str  # as config.json begins
    mutual_images: bool  # the tokens of a picture see each other, which mlx-lm's models cannot
    dtype: str
    shape: ModelShape
    layers: tuple[Layer, ...]
    kv_assumed: bool
    max_context: int | None
    weights: Weights
    quantisation: Quantisation
    num_files: int
    checkpoint_bytes: int
    fingerprint: str
    cut_widths: tuple[CutWidth, ...] = ()  # what a group must be able to divide
    tower: TowerShape | None = None

    @property
    def vision(self) -> bool:
        return self.weights.part(WeightPart.VISION) > 0

    @property
    def reads_images(self) -> bool:
        """With the extra `vision`; else the tower stays on disk."""
        return self.vision and self.outer_type in FAMILIES and not self.mutual_images

    @property
    def moe(self) -> bool:
        return self.weights.num_experts > 0

    @property
    def layer_kinds(self) -> Mapping[LayerKind, int]:
        return Counter(layer.kind for layer in self.layers)

    @property
    def expert_record_bytes(self) -> int:
        """Bytes of one expert of one layer, scales included; 0 without experts."""
        records = [e.record_bytes(self.weights.num_experts) for e in self.weights.experts]
        return max(records, default=0)

    def itemsize(self, dtype: str | None = None) -> int:
        return 4 if (dtype or self.dtype) == "float32" else 2

    def cast_itemsize(self, dtype: str | None) -> int | None:
        """What `Weights` wants: the size floats are cast to, None if they stay as stored."""
        return None if dtype in (None, self.dtype) else self.itemsize(dtype)

    def kv_bytes_per_token(
        self, kv: KvFormat = KvFormat.FP16, dtype: str | None = None
    ) -> dict[LayerKind, float]:
        """The slope of the KV cache per kind of layer; bounded layers have slope 0."""
        size = self.itemsize(dtype)
        slopes: dict[LayerKind, float] = {}
        for layer in self.layers:
            slope = sum(bytes_per_token(store, kv, size) for store in layer.stores)
            slopes[layer.kind] = slopes.get(layer.kind, 0.0) + slope
        return slopes

    def kv_bytes(
        self,
        prompt: int,
        generated: int = 0,
        kv: KvFormat = KvFormat.FP16,
        dtype: str | None = None,
        exact_layers: frozenset[int] = frozenset(),
    ) -> int:
        """KV and state of one sequence after `prompt` and `generated` tokens; `exact_layers` stay
        uncompressed whatever `kv` is."""
        size = self.itemsize(dtype)
        return self.state_bytes(dtype) + sum(
            store_bytes(store, KvFormat.FP16 if i in exact_layers else kv, size, prompt, generated)
            for i, layer in enumerate(self.layers)
            for store in layer.stores
        )

    def state_bytes(self, dtype: str | None = None) -> int:
        """The constant state of one sequence: recurrent and convolution layers."""
        return sum(layer.state_bytes(self.itemsize(dtype)) for layer in self.layers)

    def compressed_layers(self, kv: KvFormat) -> int:
        return sum(any(is_compressed(s, kv) for s in layer.stores) for layer in self.layers)


def read_model(folder: Path) -> ModelFacts:
    """The facts of a model folder. Raises ModelFilesError naming the file that is missing,
    truncated or lying, and nothing else whatever the folder holds."""
    try:
        config = read_config(folder)
        tensors = read_checkpoint(folder)
        return facts_from(config, tensors)
    except ModelFilesError:
        raise
    except OSError as error:
        raise UnreadableFile(folder, f"{folder} cannot be read: {error.strerror}") from error
    except Exception as error:  # nobody can list all the ways in which a stranger's files are wrong
        raise BadConfig(folder, f"{folder} makes no sense as a model: {error!r}") from error


def facts_from(config: Config, tensors: tuple[TensorHeader, ...]) -> ModelFacts:
    """The facts of headers already read."""
    by_name = {tensor.name: tensor for tensor in tensors}
    packings = read_packings(config, by_name)
    shape = _shape(config)
    _check_shapes(shape, by_name, packings)
    listed = layer_list(config)
    weights = sort_weights(config, tensors, packings)
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.file.name] = sizes.get(tensor.file.name, 0) + tensor.nbytes
    stored = sum(sizes.values())
    logical = sum(amount.weights for amount in weights.parts.values())
    return ModelFacts(
        path=config.path.parent,
        model_type=config.model_type,
        outer_type=config.root["model_type"],
        mutual_images=config.text.get("use_bidirectional_attention") == "vision",
        dtype=_dtype(config, by_name),
        shape=shape,
        layers=listed.layers,
        kv_assumed=listed.assumed,
        max_context=_max_context(config),
        weights=weights,
        quantisation=Quantisation(
            declared_packing(config), packings, 8 * stored / logical if logical else 0.0
        ),
        num_files=len(sizes),
        checkpoint_bytes=stored,
        fingerprint=_fingerprint(config, sizes),
        cut_widths=cut_widths(config, tensors),
        tower=tower_shape(dict(config.root)),
    )


def _shape(config: Config) -> ModelShape:
    heads = config.count("num_attention_heads", "num_heads", "n_heads", "n_head")
    hidden = config.count("hidden_size", "n_embd", "d_model")
    inter = config.maybe("intermediate_size", "block_ff_dim", "n_inner", "moe_intermediate_size")
    return ModelShape(
        hidden_size=hidden,
        intermediate_size=inter or 4 * hidden,
        vocab_size=config.count("vocab_size"),
        num_attention_heads=heads,
        num_kv_heads=kv_heads(config),
        head_size=head_size(config),
        expert_size=config.maybe("moe_intermediate_size", "expert_hidden_dim") or inter or hidden,
    )


def _check_shapes(
    shape: ModelShape, tensors: Mapping[str, TensorHeader], packings: Mapping[str, Packing]
) -> None:
    """The embedding must have the config's two sizes: a config of another model shows here."""
    for name, tensor in tensors.items():
        if not name.endswith("embed_tokens.weight") or len(tensor.shape) != 2:
            continue
        rows, columns = tensor.shape
        if packing := packings.get(name.removesuffix(".weight")):
            columns = columns * 32 // packing.bits
        if columns != shape.hidden_size or rows < shape.vocab_size:
            raise LyingHeader(
                tensor.file,
                f"{name} is {rows} x {columns}, config.json says "
                f"{shape.vocab_size} x {shape.hidden_size}",
            )


def _dtype(config: Config, tensors: Mapping[str, TensorHeader]) -> str:
    """What the embedding gives out; every activation and so every cache has that dtype."""
    for name, tensor in tensors.items():
        if not name.endswith("weight") or not any(part in name for part in _EMBEDDING):
            continue
        if tensor.dtype == "U32":
            tensor = tensors.get(name.removesuffix("weight") + "scales", tensor)
        if tensor.dtype in _DTYPES:
            return _DTYPES[tensor.dtype]
    stated = str(config.text.get("torch_dtype", config.text.get("dtype", "bfloat16")))
    return stated if stated in _DTYPES.values() else "bfloat16"


def _max_context(config: Config) -> int | None:
    stated = config.maybe(
        "max_position_embeddings", "model_max_length", "max_sequence_length", "max_seq_len",
        "seq_length", "n_positions",
    ) or None  # fmt: skip
    scaling = config.section("rope_scaling") or config.section("rope_parameters")
    kind = scaling.get("type") or scaling.get("rope_type")  # in mlx-lm's order
    original, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
    # Only these stretch what the model was trained with; llama3's factor is of frequencies alone.
    if kind not in _STRETCHED or type(original) is not int or not 0 < original < 2**40:
        return stated
    if not isinstance(factor, int | float) or not 1 <= factor <= 1024:
        return stated
    return max(stated or 0, int(original * factor))


def _fingerprint(config: Config, sizes: Mapping[str, int]) -> str:
    """Changes when the config or the size of a weight file does; not a hash of the weights."""
    digest = hashlib.sha256(
        read_bounded(config.path, CONFIG_BYTES) if config.path.exists() else b""
    )
    for file in sorted(sizes):
        digest.update(f"{file}:{sizes[file]};".encode())
    return digest.hexdigest()[:16]
