"""Which layers may be compressed: read from a config as the planner reads it, for every class."""

import pytest
from every_class import build, class_names

from swiftlm_engine.turboquant.build import model_config
from swiftlm_engine.turboquant.layer_support import decide, head_dim


@pytest.mark.parametrize("name", class_names())
def test_every_class_of_mlx_lm_gets_a_verdict(name: str):
    model = build(name)
    config = model_config(model)
    verdict = decide(config, "k4v3")
    assert len(verdict.layers) == model_layers(model)
    assert head_dim(config) > 0


def model_layers(model) -> int:
    return len(model.layers)


def test_the_class_is_asked_whether_it_reads_a_head_size():
    config = {"model_type": "exaone", "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    assert (len(decide(config, "k4v3").layers), head_dim(config)) == (2, 16)
    gpt2 = {"model_type": "gpt2", "n_layer": 3, "n_embd": 96, "n_head": 3}
    assert (len(decide(gpt2, "k4v3").layers), head_dim(gpt2)) == (3, 32)
