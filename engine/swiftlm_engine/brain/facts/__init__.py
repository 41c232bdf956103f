"""Facts about a model from config.json and safetensors headers; no weight is read, no MLX needed.

`read_model(folder)` is the way in. It doubles as the completeness check of a download.
"""

from swiftlm_engine.brain.facts.checkpoint import read_checkpoint
from swiftlm_engine.brain.facts.errors import (
    BadConfig,
    LyingHeader,
    MissingFile,
    ModelFilesError,
    TruncatedFile,
    UnreadableFile,
)
from swiftlm_engine.brain.facts.estimated import SizeFacts, active_share, estimated_facts
from swiftlm_engine.brain.facts.files import open_regular, read_bounded, weight_files
from swiftlm_engine.brain.facts.kv import KvFormat
from swiftlm_engine.brain.facts.layers import KvStore, Layer, LayerKind
from swiftlm_engine.brain.facts.model import ModelFacts, ModelShape, facts_from, read_model
from swiftlm_engine.brain.facts.quantization import Packing, Quantisation
from swiftlm_engine.brain.facts.safetensors import TensorHeader, read_header
from swiftlm_engine.brain.facts.sorting import block_of, layer_of
from swiftlm_engine.brain.facts.weights import (
    Amount,
    Experts,
    Packed,
    Sublayer,
    WeightPart,
    Weights,
)

__all__ = [
    "Amount",
    "BadConfig",
    "Experts",
    "KvFormat",
    "KvStore",
    "Layer",
    "LayerKind",
    "LyingHeader",
    "MissingFile",
    "ModelFacts",
    "ModelFilesError",
    "ModelShape",
    "Packed",
    "Packing",
    "Quantisation",
    "SizeFacts",
    "Sublayer",
    "TensorHeader",
    "TruncatedFile",
    "UnreadableFile",
    "WeightPart",
    "Weights",
    "active_share",
    "block_of",
    "estimated_facts",
    "facts_from",
    "layer_of",
    "open_regular",
    "read_bounded",
    "read_checkpoint",
    "read_header",
    "read_model",
    "weight_files",
]
