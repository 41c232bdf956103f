"""Facts about a model from config.json and safetensors headers; no weight is read, no MLX needed.

`read_model(folder)` is the way in. It doubles as the completeness check of a download.
"""

from .checkpoint import read_checkpoint
from .errors import BadConfig, LyingHeader, MissingFile, ModelFilesError, TruncatedFile
from .kv import KvFormat
from .layers import KvStore, Layer, LayerKind
from .model import ModelFacts, Shape, facts_from, read_model
from .quantisation import Packing, Quantisation
from .safetensors import Tensor, read_header
from .sorting import layer_of
from .weights import Amount, Experts, Part, Weights

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
    "Packing",
    "Part",
    "Quantisation",
    "Shape",
    "Tensor",
    "TruncatedFile",
    "Weights",
    "facts_from",
    "layer_of",
    "read_checkpoint",
    "read_header",
    "read_model",
]
