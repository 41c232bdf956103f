"""What is said of a model folder whose configuration mlx-lm does not take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import make_model

from swiftlm_engine.load.device import Device
from swiftlm_engine.load.weights import load_weights
from swiftlm_engine.messages import EngineFault


def test_missing_keys_are_named_without_the_names_of_a_library(tmp_path: Path) -> None:
    folder = make_model("llama", tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    for key in ("rms_norm_eps", "num_hidden_layers"):
        del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineFault) as refused:
        load_weights(folder, "float32", Device.CPU, lambda *_: None)
    assert "config.json lacks 'num_hidden_layers'" in str(refused.value)
    assert "rms_norm_eps" in str(refused.value)
    assert "__init__" not in str(refused.value)
