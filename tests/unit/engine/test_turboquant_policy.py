"""The load-time self-test: what it accepts, what it takes back, and what it remembers."""

import json
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm import load
from tiny_models import make_model

from swiftlm_engine import turboquant
from swiftlm_engine.turboquant import policy
from swiftlm_engine.turboquant.build import model_verdict
from swiftlm_engine.turboquant.formats import K4V3, K8V3

TEXT = [(11 * i * i + 5 * i) % 300 + 20 for i in range(256)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory):
    folder = make_model("llama", tmp_path_factory.mktemp("model"), num_hidden_layers=3)
    model = load(str(folder))[0]
    turboquant.install(model)
    return model


@pytest.fixture
def spoiled(llama):
    """The same model, its second layer with keys so strong that no 4-bit code follows them."""
    weight = llama.model.layers[1].self_attn.k_proj.weight
    llama.model.layers[1].self_attn.k_proj.weight = weight * 30
    yield llama
    llama.model.layers[1].self_attn.k_proj.weight = weight


def test_measurement_names_an_error_for_every_compressed_layer(llama):
    measured = policy.measure(llama, TEXT, model_verdict(llama, "k4v3"))
    assert len(measured.layer_errors) == 3
    assert all(0.001 < e < 1 for e in measured.layer_errors)
    finer = policy.measure(llama, TEXT, model_verdict(llama, "k8v3"))
    assert finer.kld < measured.kld
    assert max(finer.layer_errors) < max(measured.layer_errors)


def test_accepted_mode_is_kept_for_all_layers(llama, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(policy, "MAX_KLD", 10.0)
    measured = policy.self_test(llama, TEXT, "k4v3", tmp_path, "weights")
    assert [v.format for v in measured.verdict.layers] == [K4V3] * 3
    made = turboquant.make_caches(llama, "k4v3", measured.verdict)
    assert all(isinstance(c, turboquant.TurboKVCache) for c in made.caches)


def test_layer_that_sticks_out_goes_back_to_exact_kv(spoiled, tmp_path: Path, monkeypatch):
    first = policy.measure(spoiled, TEXT, model_verdict(spoiled, "k4v3"))
    assert max(first.layer_errors) == first.layer_errors[1]
    monkeypatch.setattr(policy, "_STICKS_OUT", 1.01)
    without = policy._without_outliers(first)
    limit = (policy.measure(spoiled, TEXT, without).kld + first.kld) / 2
    monkeypatch.setattr(policy, "MAX_KLD", limit)
    measured = policy.self_test(spoiled, TEXT, "k4v3", tmp_path, "weights")
    assert measured.verdict == without
    assert "self-test" in measured.verdict.layers[1].reason


def test_hopeless_mode_keeps_exact_kv_and_says_so(llama, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(policy, "MAX_KLD", -1.0)
    measured = policy.self_test(llama, TEXT, "k4v3", tmp_path, "weights")
    assert measured.verdict.num_compressed_layers == 0
    assert all("KLD" in v.reason for v in measured.verdict.layers)


def test_eight_bit_keys_are_tried_before_giving_up(llama, tmp_path: Path, monkeypatch):
    eight = policy.measure(llama, TEXT, policy._with_eight_bit_keys(model_verdict(llama, "k4v3")))
    monkeypatch.setattr(policy, "MAX_KLD", eight.kld * 1.001)
    monkeypatch.setattr(policy, "_STICKS_OUT", 100.0)
    measured = policy.self_test(llama, TEXT, "k4v3", tmp_path, "weights")
    assert {v.format for v in measured.verdict.layers} == {K8V3}


def test_outcome_is_remembered_by_weights_and_mode(llama, tmp_path: Path, monkeypatch):
    measured = policy.self_test(llama, TEXT, "k4v3", tmp_path, "weights")
    monkeypatch.setattr(policy, "measure", lambda *_: pytest.fail("measured again"))
    assert policy.self_test(llama, TEXT, "k4v3", tmp_path, "weights") == measured
    kept = json.loads((tmp_path / "weights-k4v3.json").read_text())
    assert kept["mode"] == "k4v3"


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '{"version": 1, "mode": "k4v3"}'])
def test_damaged_record_is_measured_again(llama, tmp_path: Path, damage: str):
    (tmp_path / "weights-k4v3.json").write_text(damage)
    measured = policy.self_test(llama, TEXT, "k4v3", tmp_path, "weights")
    assert measured.kld > 0


def test_text_shorter_than_the_exact_zone_measures_nothing(llama):
    measured = policy.measure(llama, TEXT[:40], model_verdict(llama, "k4v3"))
    assert measured.kld == 0.0
    assert mx.all(mx.array(measured.layer_errors) < 1e-3)
