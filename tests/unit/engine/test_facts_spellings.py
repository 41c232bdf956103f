"""What published configs say in other words than most: context, sizes per layer, tied heads."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from swiftlm_engine.brain.facts.config import make_config
from swiftlm_engine.brain.facts.errors import BadConfig
from swiftlm_engine.brain.facts.families import layer_list
from swiftlm_engine.brain.facts.model import _max_context, _shape
from swiftlm_engine.brain.facts.safetensors import TensorHeader
from swiftlm_engine.brain.facts.sorting import sort_weights
from swiftlm_engine.brain.facts.weights import WeightPart

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100,
}  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "scaling", "context"),
    [
        (131072, {"rope_type": "llama3", "factor": 32.0, "o": 8192}, 131072),  # Llama 3.2
        (131072, {"rope_type": "llama3", "factor": 8.0, "o": 8192}, 131072),  # Llama 3.1
        (65536, {"rope_type": "llama3", "factor": 16.0, "o": 8192}, 65536),  # EXAONE 4.0 1.2B
        (40960, {"rope_type": "yarn", "factor": 4.0, "o": 32768}, 131072),  # Qwen3 as documented
        (131072, {"type": "yarn", "factor": 32.0, "o": 4096}, 131072),
        (163840, {"type": "deepseek_yarn", "factor": 40, "o": 4096}, 163840),
        (4096, {"type": "linear", "factor": 4.0, "o": 4096}, 16384),
        (32768, {"type": "default", "factor": 4.0, "o": 32768}, 32768),
        (32768, {"factor": 4.0, "o": 32768}, 32768),
        (131072, {"type": "longrope", "factor": 32.0, "o": 8192}, 131072),
        (4096, {"type": "dynamic", "factor": 2.0, "o": 4096}, 4096),
        (4096, {"type": "yarn", "factor": float("inf"), "o": 4096}, 4096),
        (4096, {"type": "yarn", "factor": 2.0, "o": 10**400}, 4096),
        (4096, {"type": ["yarn"], "factor": 2.0, "o": 4096}, 4096),
    ],
)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_context_is_stretched_where_the_model_is(
    stated: int, scaling: dict[str, Any], context: int, key: str
) -> None:
    scaling = {
        ("original_max_position_embeddings" if k == "o" else k): v for k, v in scaling.items()
    }
    config = LLAMA | {"max_position_embeddings": stated, key: scaling}
    assert _max_context(make_config(Path("config.json"), config)) == context


def test_sizes_per_layer_count_as_the_largest() -> None:
    gemma3n = LLAMA | {
        "model_type": "gemma3n_text", "intermediate_size": [96, 128], "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"],
    }  # fmt: skip
    assert _shape(make_config(Path("config.json"), gemma3n)).intermediate_size == 128
    hunyuan = LLAMA | {
        "model_type": "hunyuan", "moe_intermediate_size": [48, 64], "moe_topk": [1, 2],
        "num_shared_expert": [1, 1], "num_experts": 4,
    }  # fmt: skip
    config = make_config(Path("config.json"), hunyuan)
    shape = _shape(config)
    assert (shape.intermediate_size, shape.expert_size) == (96, 64)
    assert config.maybe("moe_topk") == 2


@pytest.mark.parametrize("value", [[], [96, "x"], [96, [128]], [96, -1], [2**50], {}])
def test_a_list_that_holds_no_sizes_is_refused(value: object) -> None:
    with pytest.raises(BadConfig, match="intermediate_size"):
        _shape(make_config(Path("config.json"), LLAMA | {"intermediate_size": value}))
    with pytest.raises(BadConfig):
        layer_list(make_config(Path("config.json"), LLAMA | {"num_hidden_layers": [2, 2]}))


MODELS = sorted(Path(find_spec("mlx_lm").submodule_search_locations[0], "models").glob("*.py"))  # type: ignore[union-attr, index]


def head_bytes(model_type: str, **keys: object) -> int:
    """Of an output head that is in the files."""
    config = make_config(Path("config.json"), LLAMA | {"model_type": model_type} | keys)
    head = TensorHeader("lm_head.weight", "F16", (100, 64), Path("model.safetensors"), 0, 12800)
    return sort_weights(config, [head], {}).part(WeightPart.HEAD)


@pytest.mark.parametrize("file", MODELS, ids=lambda path: path.stem)
def test_heads_are_counted_as_their_class_loads_them(file: Path) -> None:
    source = file.read_text()
    if re.search(r"tie_word_embeddings: bool = True", source):
        assert head_bytes(file.stem) == 0
    elif re.search(r"tie_word_embeddings: bool = False", source):
        assert head_bytes(file.stem) > 0
    elif "self.lm_head = nn.Linear" in source and "tie_word_embeddings" not in source:
        assert head_bytes(file.stem, tie_word_embeddings=True) > 0


def test_an_untied_gemma_3_keeps_its_head() -> None:
    assert head_bytes("gemma3_text", tie_word_embeddings=True) > 0
    assert head_bytes("gemma3") > 0


def test_gemma_3n_keeps_the_projections_that_it_does_not_use() -> None:
    config = LLAMA | {
        "model_type": "gemma3n_text", "num_kv_shared_layers": 1, "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"],
    }  # fmt: skip
    name = "language_model.model.layers.1.self_attn.k_proj.weight"
    tensor = TensorHeader(name, "F16", (32, 64), Path("model.safetensors"), 0, 4096)
    parsed = make_config(Path("config.json"), config)
    assert sort_weights(parsed, [tensor], {}).part(WeightPart.DENSE) == 4096
    parsed = make_config(Path("config.json"), config | {"model_type": "gemma4_text"})
    assert sort_weights(parsed, [tensor], {}).part(WeightPart.DENSE) == 0
