"""Sort tensors into the parts of `Weights` by their names, and check experts against the config."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from swiftlm_engine.brain.facts.config import Config
from swiftlm_engine.brain.facts.errors import LyingHeader
from swiftlm_engine.brain.facts.expert_layout import unreadable_expert
from swiftlm_engine.brain.facts.families import num_layers
from swiftlm_engine.brain.facts.quantization import Packing, logical_size
from swiftlm_engine.brain.facts.safetensors import TensorHeader
from swiftlm_engine.brain.facts.weights import (
    Amount,
    Experts,
    Packed,
    Sublayer,
    WeightPart,
    Weights,
)

_LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h)\.(\d{1,9})\.")
_VISION = frozenset({
    "vision_tower", "vision_model", "visual", "multi_modal_projector", "mm_projector",
    "audio_tower", "embed_vision", "embed_audio", "vision_embedder", "vision_projection",
    "vision_embed_tokens", "patch_merger", "image_newline", "sam_model", "vision_encoder",
})  # fmt: skip
_EXPERTS = frozenset({"experts", "switch_mlp", "switch_glu"})
_EMBEDDINGS = frozenset({"embed_tokens", "wte", "word_embeddings", "tok_embeddings"})
_LOOKED_UP = frozenset({"embed_tokens_per_layer"})
_DROPPED = ("rotary_emb.inv_freq", "scale_inv", ".input_max", ".input_min", ".output_max",
            ".output_min")  # fmt: skip
# Layers that share KV keep no projections of their own for it; in mlx-lm those of Gemma 3n do.
_SHARED_KV = frozenset({"k_proj", "v_proj", "k_norm"})
_KEEPS_SHARED_KV = frozenset({"gemma3n", "gemma3n_text"})
# Their classes have an output head whatever config.json says of tied embeddings.
_ALWAYS_HEAD = frozenset({
    "Klear", "dbrx", "deepseek", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v41",
    "gemma3", "gemma3_text", "glm4", "gpt_oss", "gptj", "kimi_k25", "kimi_vl", "llama4",
    "llama4_text", "longcat_flash", "longcat_flash_ngram", "mimo_v2_flash", "muse_spark",
    "nanochat", "nemotron_h", "openelm", "phi", "phimoe", "phixtral", "plamo", "qwen",
    "qwen3_vl_moe", "recurrent_gemma", "stablelm", "talkie",
})  # fmt: skip
_NUMBERED = re.compile(r"\.experts\.(\d{1,9})\.")
_FLOATS = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}
# An fp8 checkpoint is widened to bfloat16 by mlx-lm's sanitize, unless it is mxfp8 in disguise.
_WIDENED = frozenset({"F8_E4M3", "F8_E5M2"})
_LEAVES = frozenset({"weight", "scales", "biases", "bias"})
_MULTIPLIED = frozenset({WeightPart.DENSE, WeightPart.EMBEDDING, WeightPart.HEAD})
_EXPERT_COUNT = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts",
                 "num_routed_experts")  # fmt: skip
_EXPERTS_USED = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk",
                 "moe_top_k", "moe_k", "num_selected_experts", "experts_per_token")  # fmt: skip


def layer_of(tensor: str) -> int | None:
    """The number of the layer that a tensor belongs to; None for what is in none."""
    match = _LAYER.search(tensor)
    if match is None or not _VISION.isdisjoint(tensor.split(".")):
        return None
    return int(match[1])


def sort_weights(
    config: Config, tensors: Iterable[TensorHeader], packings: Mapping[str, Packing]
) -> Weights:
    """Raises LyingHeader where the experts in the files are not those of config.json."""
    sorter = _Sorter(config)
    for tensor in tensors:
        sorter.add(tensor, packings)
    return sorter.weights()


def block_of(module: str) -> Sublayer:
    """Of a module's path, in a checkpoint or in a loaded model."""
    if layer_of(f"{module}.") is None:
        return Sublayer.ENDS
    behind = re.split(r"\.(?:layers|blocks|h)\.\d+\.", f".{module}", maxsplit=1)[-1]
    return Sublayer.ATTENTION if "attn" in behind or "attention" in behind else Sublayer.MLP


class _Tally:
    """A mutable Amount: a checkpoint may list 100,000 tensors."""

    __slots__ = ("fixed_bytes", "float_bytes", "floats", "weights")

    def __init__(self) -> None:
        self.fixed_bytes = self.floats = self.float_bytes = self.weights = 0

    def add(self, floats: int, nbytes: int, weights: int) -> None:
        if floats:
            self.floats += floats
            self.float_bytes += nbytes
        else:
            self.fixed_bytes += nbytes
        self.weights += weights

    def amount(self) -> Amount:
        return Amount(self.fixed_bytes, self.floats, self.float_bytes, self.weights)


class _Sorter:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._num_layers = num_layers(config)
        shared = config.count("num_kv_shared_layers", default=0, least=0)
        self._first_shared = self._num_layers - shared
        if config.model_type in _KEEPS_SHARED_KV:
            self._first_shared = self._num_layers
        always = config.model_type in _ALWAYS_HEAD
        self._tied = config.flag("tie_word_embeddings") and not always
        self._num_experts = config.maybe(*_EXPERT_COUNT) or 0
        self._tallies: dict[tuple[WeightPart, int | None], _Tally] = {}
        self._places: dict[str, tuple[WeightPart, int | None]] = {}
        self._packed: dict[tuple[WeightPart, int | None, Sublayer], _Tally] = {}
        self._experts: list[TensorHeader] = []
        self._largest = 0

    def add(self, tensor: TensorHeader, packings: Mapping[str, Packing]) -> None:
        # Weight, scales and biases of a module go to one place; its name is looked at once.
        module, _, leaf = tensor.name.rpartition(".")
        key = module if leaf in _LEAVES else tensor.name
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._place(tensor)
        floats, nbytes = self._floats(tensor)
        tally = self._tallies.get(place)
        if tally is None:
            tally = self._tallies[place] = _Tally()
        size = logical_size(tensor, packings)
        tally.add(floats, nbytes, size)
        part = place[0]
        if module in packings and part in _MULTIPLIED:
            packed = self._packed.setdefault((*place, block_of(module)), _Tally())
            packed.add(floats, nbytes, size)
        if part is WeightPart.EXPERTS:
            self._check_experts(tensor)
            self._experts.append(tensor)
        if (
            nbytes > self._largest
            and part is not WeightPart.VISION
            and part is not WeightPart.UNUSED
        ):
            self._largest = nbytes

    def weights(self) -> Weights:
        parts, experts, layers = dict.fromkeys(WeightPart, Amount()), {}, dict[int, Amount]()
        for (part, layer), tally in self._tallies.items():
            amount = tally.amount()
            parts[part] += amount
            if part is WeightPart.EXPERTS:
                experts[layer or 0] = amount
            if layer is not None and part is not WeightPart.UNUSED:
                layers[layer] = layers.get(layer, Amount()) + amount
        used = self._config.maybe(*_EXPERTS_USED) or self._num_experts
        return Weights(
            parts=parts,
            experts=tuple(Experts(layer, experts[layer]) for layer in sorted(experts)),
            layers=tuple(layers[layer] for layer in sorted(layers)),
            num_experts=self._num_experts if experts else 0,
            experts_per_token=min(used, self._num_experts) if experts else 0,
            tied=not parts[WeightPart.HEAD].weights,
            largest_tensor_bytes=self._largest,
            largest_layer_bytes=max((a.bytes_as() for a in layers.values()), default=0),
            unreadable_expert=unreadable_expert(self._config.model_type, self._experts),
            packed=self._blocks(tied=not parts[WeightPart.HEAD].weights),
        )

    def _blocks(self, *, tied: bool) -> tuple[Packed, ...]:
        """An embedding that is no head gives single rows: nothing is multiplied with it."""
        found = [
            Packed(block, layer, tally.amount())
            for (part, layer, block), tally in self._packed.items()
            if tied or part is not WeightPart.EMBEDDING
        ]
        return tuple(sorted(found, key=lambda one: (one.layer or 0, one.block)))

    def _place(self, tensor: TensorHeader) -> tuple[WeightPart, int | None]:
        name = tensor.name
        segments = set(name.split("."))
        if not segments.isdisjoint(_VISION):
            return WeightPart.VISION, None
        layer = layer_of(name)
        if self._is_dropped(name, segments, layer):
            return WeightPart.UNUSED, layer
        if not segments.isdisjoint(_EXPERTS) or ".block_sparse_moe.input_linear" in name:
            return WeightPart.EXPERTS, layer
        if not segments.isdisjoint(_EMBEDDINGS):
            return WeightPart.EMBEDDING, None
        if not segments.isdisjoint(_LOOKED_UP):
            return WeightPart.LOOKED_UP, None
        if "lm_head" in segments:
            return WeightPart.HEAD, None
        return WeightPart.DENSE, layer

    def _is_dropped(self, name: str, segments: set[str], layer: int | None) -> bool:
        """What mlx-lm's sanitize throws away before anything is read."""
        if name.endswith(_DROPPED) or "mtp" in segments:
            return True
        if layer is None:
            return self._tied and "lm_head" in segments
        if layer >= self._num_layers:
            return True  # multi-token prediction layers follow the real ones
        return layer >= self._first_shared and not segments.isdisjoint(_SHARED_KV)

    def _floats(self, tensor: TensorHeader) -> tuple[int, int]:
        """How many floats a load may cast, and the bytes in memory as stored."""
        if tensor.dtype in _FLOATS:
            return tensor.size, tensor.nbytes
        if tensor.dtype in _WIDENED:
            return tensor.size, 2 * tensor.nbytes
        return 0, tensor.nbytes

    def _check_experts(self, tensor: TensorHeader) -> None:
        if match := _NUMBERED.search(tensor.name):
            if int(match[1]) < self._num_experts:
                return
            found = int(match[1]) + 1
        elif not tensor.shape or self._config.model_type == "dbrx":
            return
        else:
            found = tensor.shape[0]
            if found == self._num_experts or not self._num_experts:
                self._num_experts = found
                return
        raise LyingHeader(
            tensor.file,
            f"{tensor.name} is of {found} experts, config.json says {self._num_experts}",
        )
