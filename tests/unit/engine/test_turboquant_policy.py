"""The load-time self-test: what it accepts, what it takes back, and what it remembers."""

import itertools
import json
from functools import partial
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm import load
from tiny_models import make_model

from swiftlm_engine import turboquant
from swiftlm_engine.session.kv_self_test import _Progress
from swiftlm_engine.turboquant import policy
from swiftlm_engine.turboquant.build import model_verdict
from swiftlm_engine.turboquant.formats import K4V3, K8V3

TEXT = [(11 * i * i + 5 * i) % 300 + 20 for i in range(256)]

LONGER = policy.test_ids(TEXT, 500)  # on fewer the gain is within the noise


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


def test_measurement_counts_from_nothing_to_all(llama):
    told: list[float] = []
    policy.measure(llama, TEXT, model_verdict(llama, "k4v3"), progress=told.append)
    assert (told[0], told[-1]) == (0.0, 1.0)
    assert told == sorted(told)
    assert len(told) >= 5
    assert max(after - before for before, after in itertools.pairwise(told)) < 0.5


def test_the_check_says_once_how_long_it_takes_here():
    now, told = [0.0], []
    progress = _Progress("k4v3", lambda *said: told.append(said), clock=lambda: now[0])
    for step in range(11):
        now[0] = 4.0 * step + (20.0 if step > 5 else 0.0)  # later it gets slower
        progress(step / 10)
    assert [fraction for _, fraction, _ in told] == [step / 10 for step in range(11)]
    assert told[0][2] == "kv k4v3, once for this model"
    assert {detail for *_, detail in told[1:]} == {"kv k4v3, about 40 s, once for this model"}


def test_accepted_mode_is_kept_for_all_layers(llama, monkeypatch):
    monkeypatch.setattr(policy, "MAX_KLD", 10.0)
    outcome = policy.self_test(llama, TEXT, "k4v3", None)
    assert outcome.passed
    assert [v.format for v in outcome.measured.verdict.layers] == [K4V3] * 3
    made = turboquant.make_caches(llama, "k4v3", outcome.measured.verdict)
    assert all(isinstance(c, turboquant.TurboKVCache) for c in made.caches)


def test_layer_that_sticks_out_goes_back_to_exact_kv(spoiled, monkeypatch):
    first = policy.measure(spoiled, LONGER, model_verdict(spoiled, "k4v3"))
    assert max(first.layer_errors) == first.layer_errors[1]
    assert 1 in first.worst_layers(1)
    monkeypatch.setattr(policy, "_STICKS_OUT", 1.01)
    without = policy._without_outliers(first)
    limit = (policy.measure(spoiled, LONGER, without).kld + first.kld) / 2
    monkeypatch.setattr(policy, "MAX_KLD", limit)
    outcome = policy.self_test(spoiled, LONGER, "k4v3", None)
    assert outcome.passed
    assert outcome.measured.verdict == without
    assert "self-test" in without.layers[1].reason


def test_a_sample_of_the_layers_is_enough_where_it_passes(llama, monkeypatch):
    monkeypatch.setattr(policy, "SAMPLE", 2)
    quick = partial(policy.measure, sample=2)
    whole: list[object] = []

    def all_layers(*asked):
        whole.append(asked)
        return policy.measure(*asked)

    monkeypatch.setattr(policy, "MAX_KLD", 10.0)
    passed = policy.self_test(llama, TEXT, "k4v3", None, 64, all_layers, quick)
    assert passed.passed
    assert [error > 0 for error in passed.measured.layer_errors] == [True, False, True]
    assert not whole
    monkeypatch.setattr(policy, "MAX_KLD", -1.0)
    failed = policy.self_test(llama, TEXT, "k4v3", None, 64, all_layers, quick)
    assert all(error > 0 for error in failed.measured.layer_errors)  # who is to blame: all asked
    assert whole


@pytest.mark.parametrize(("count", "judged"), [(1, [0]), (3, [0, 1, 2]), (9, [0, 3, 5, 8])])
def test_a_sample_of_layers_is_spread_over_the_model(count, judged):
    assert sorted(policy._sampled(count, 4)) == judged
    assert sorted(policy._sampled(count, 0)) == list(range(count))


def test_hopeless_mode_fails_with_nothing_better(llama, monkeypatch):
    monkeypatch.setattr(policy, "MAX_KLD", -1.0)
    outcome = policy.self_test(llama, TEXT, "k4v3", None)
    assert not outcome.passed
    assert outcome.better is None
    assert outcome.measured.kld > 0


def test_model_whose_logits_are_not_numbers_fails(llama, monkeypatch):
    monkeypatch.setattr(policy, "_divergence", lambda *_: mx.array([[float("nan")]]))
    assert not policy.self_test(llama, TEXT, "k8v3", None).passed


def test_eight_bit_keys_that_pass_are_named_and_not_taken(llama, monkeypatch):
    eight = policy.measure(llama, TEXT, policy._with_eight_bit_keys(model_verdict(llama, "k4v3")))
    monkeypatch.setattr(policy, "MAX_KLD", eight.kld * 1.001)
    monkeypatch.setattr(policy, "_STICKS_OUT", 100.0)
    outcome = policy.self_test(llama, TEXT, "k4v3", None)
    assert not outcome.passed
    assert {v.format for v in outcome.measured.verdict.layers} == {K4V3}
    assert {v.format for v in outcome.better.verdict.layers} == {K8V3}


@pytest.mark.parametrize("limit", [10.0, -1.0])
def test_outcome_is_remembered_whole(llama, tmp_path: Path, monkeypatch, limit: float):
    monkeypatch.setattr(policy, "MAX_KLD", limit)
    record = tmp_path / "new" / "weights-k4v3.json"
    outcome = policy.self_test(llama, TEXT, "k4v3", record)
    monkeypatch.setattr(policy, "measure", lambda *_: pytest.fail("measured again"))
    assert policy.self_test(llama, TEXT, "k4v3", record) == outcome
    assert [path.name for path in record.parent.iterdir()] == [record.name]


@pytest.mark.parametrize(
    "damage",
    ["", "{}", "[1]", '{"version": 3, "mode": "k4v3"}', '{"version": 2, "mode": "k4v3"}', None],
)
def test_damaged_record_is_measured_again(llama, tmp_path: Path, damage: str | None):
    record = tmp_path / "record.json"
    if damage is not None:
        record.write_text(damage)
    else:
        policy.self_test(llama, TEXT, "k4v3", record)
        kept = json.loads(record.read_text())
        kept["measured"]["layers"][0]["format"] = "k9v9"
        record.write_text(json.dumps(kept))
    assert policy.self_test(llama, TEXT, "k4v3", record).measured.kld > 0


def test_folder_that_cannot_be_written_costs_no_load(llama, tmp_path: Path):
    (tmp_path / "file").write_text("no folder")
    outcome = policy.self_test(llama, TEXT, "k4v3", tmp_path / "file" / "record.json")
    assert outcome.measured.kld > 0


def test_text_shorter_than_the_exact_zone_measures_nothing(llama):
    measured = policy.measure(llama, TEXT[:40], model_verdict(llama, "k4v3"))
    assert measured.kld == 0.0
    assert mx.all(mx.array(measured.layer_errors) < 1e-3)
