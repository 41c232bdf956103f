"""What a load does with the verdict of the self-test: no format is taken or dropped in silence."""

from dataclasses import replace
from pathlib import Path

import pytest
from mlx_lm import load
from tiny_models import make_model

from swiftlm_engine import turboquant
from swiftlm_engine.brain import facts
from swiftlm_engine.brain.facts import KvFormat
from swiftlm_engine.load.device import Device
from swiftlm_engine.load.options import EngineOptions
from swiftlm_engine.load.weights import LoadedWeights
from swiftlm_engine.messages import EngineFault, FaultKind
from swiftlm_engine.session import kv_self_test
from swiftlm_engine.session.kv_format import choose_caches
from swiftlm_engine.turboquant import TurboKVCache, policy
from swiftlm_engine.turboquant.backend import default_backend
from swiftlm_engine.turboquant.calibration import AttentionShape, decode_ratio
from swiftlm_engine.turboquant.formats import K4V3
from swiftlm_engine.turboquant.layer_support import Verdict


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory):
    folder = make_model(
        "llama", tmp_path_factory.mktemp("model"), num_hidden_layers=3, head_dim=64,
        max_position_embeddings=4096,
    )  # fmt: skip
    model, tokenizer = load(str(folder))
    return folder, LoadedWeights(model, tokenizer, {}, 0, "float32")


def choose(loaded, kv: str = "k4v3", device: Device = Device.CPU, **options: object):
    folder, weights = loaded
    asked = EngineOptions(model="tiny", folder=folder, kv=kv, **options)  # type: ignore[arg-type]
    return choose_caches(weights, asked, facts.read_model(folder), device, lambda *_: None)


def accept_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(policy, "MAX_KLD", 10.0)


def test_format_that_passes_is_taken_and_reported_per_layer(loaded, monkeypatch):
    accept_all(monkeypatch)
    caches = choose(loaded)
    assert caches.kv is KvFormat.K4V3
    assert all(isinstance(c, TurboKVCache) for c in caches.make())
    report = caches.report()
    assert report["layers"] == ["k4v3"] * 3
    assert report["kld"] == caches.measured.kld > 0
    assert report["bytes_per_token"] < 0.25 * report["exact_bytes_per_token"]  # of float32


def test_asked_format_that_fails_is_refused_with_figures_and_what_passes(loaded, monkeypatch):
    with monkeypatch.context() as patch:
        accept_all(patch)
        eight = choose(loaded, "k8v3").measured.kld
    monkeypatch.setattr(policy, "MAX_KLD", eight * 1.001)
    monkeypatch.setattr(policy, "_STICKS_OUT", 100.0)
    with pytest.raises(EngineFault) as refused:
        choose(loaded)
    assert refused.value.kind is FaultKind.UNSUPPORTED
    assert f"k8v3 passes with {eight:.4f}: --kv k8v3, or --kv fp16" in refused.value.message


def test_asked_format_with_nothing_better_is_refused_with_exact_kv_as_the_way_out(
    loaded, monkeypatch
):
    monkeypatch.setattr(policy, "MAX_KLD", -1.0)
    with pytest.raises(EngineFault, match=r"KLD 0\.\d+ nats.*load it with --kv fp16"):
        choose(loaded)


def test_format_of_the_plan_that_fails_leaves_kv_exact_and_says_why(loaded, monkeypatch):
    monkeypatch.setattr(policy, "MAX_KLD", -1.0)
    caches = choose(loaded, kv_auto=True)
    assert caches.kv is KvFormat.FP16
    assert not any(isinstance(c, TurboKVCache) for c in caches.make())
    assert "kv auto stays fp16: kv k4v3 failed its self-test" in caches.notes[0]
    assert caches.report()["layers"] == ["fp16"] * 3


def test_exact_kv_that_the_plan_has_no_room_for_is_announced(loaded, monkeypatch):
    monkeypatch.setattr(policy, "MAX_KLD", -1.0)
    caches = choose(loaded, kv_auto=True, context=4096, kv_budget_bytes=1 << 20)
    assert "what does not fit is refused" in caches.notes[1]


def test_layer_left_exact_is_priced_and_keeps_disk_entries_apart(loaded, monkeypatch):
    accept_all(monkeypatch)
    whole = choose(loaded)
    part = replace(whole, exact_layers=frozenset({1}))
    exact = choose(loaded, "fp16")
    third = (whole.price(1000, 0) * 2 + exact.price(1000, 0)) / 3
    assert part.price(1000, 0) == pytest.approx(third)
    assert part.signature != whole.signature


def test_verdict_is_kept_in_the_state_folder_under_the_weights(loaded, tmp_path: Path, monkeypatch):
    accept_all(monkeypatch)
    first = choose(loaded, records_dir=tmp_path)
    monkeypatch.setattr(policy, "measure", lambda *_: pytest.fail("measured again"))
    assert choose(loaded, records_dir=tmp_path).measured == first.measured
    (record,) = (tmp_path / "kv-self-test").iterdir()
    identity = kv_self_test.weights_identity(loaded[0], "float32", Device.CPU)
    assert record.name == f"{identity}-k4v3.json"


def test_identity_changes_with_weights_number_type_and_device(tmp_path: Path):
    folder = make_model("llama", tmp_path / "a")
    other = make_model("llama", tmp_path / "b", seed=1)
    identities = {
        kv_self_test.weights_identity(folder, "float32", Device.CPU),
        kv_self_test.weights_identity(folder, "bfloat16", Device.CPU),
        kv_self_test.weights_identity(folder, "float32", Device.METAL),
        kv_self_test.weights_identity(other, "float32", Device.CPU),
    }
    assert len(identities) == 4


def test_auto_compresses_where_calibration_says_it_is_faster(loaded, monkeypatch):
    accept_all(monkeypatch)
    monkeypatch.setattr(kv_self_test, "decode_ratio", lambda *_: 1.8)
    assert choose(loaded, "fp16", kv_auto=True).kv is KvFormat.FP16  # no kernels on a CPU
    caches = choose(loaded, "fp16", Device.METAL, kv_auto=True)
    assert caches.kv is KvFormat.K4V3
    assert "1.8 x as fast" in caches.notes[0]
    assert choose(loaded, "fp16", Device.METAL).kv is KvFormat.FP16  # asked for by the operator
    monkeypatch.setattr(kv_self_test, "decode_ratio", lambda *_: 1.05)
    assert choose(loaded, "fp16", Device.METAL, kv_auto=True).kv is KvFormat.FP16


def test_auto_does_not_slow_short_requests_down_for_the_sake_of_long_ones(loaded, monkeypatch):
    accept_all(monkeypatch)
    measured = iter([0.9, 1.8])  # short, full context
    monkeypatch.setattr(kv_self_test, "decode_ratio", lambda *_: next(measured))
    assert choose(loaded, "fp16", Device.METAL, kv_auto=True).kv is KvFormat.FP16


def test_calibration_is_the_ratio_of_both_times():
    ticks = iter([0.0, 3.0] * 5 + [0.0, 1.5] * 5)
    shape = AttentionShape(4, 2, 64)
    assert decode_ratio(shape, K4V3, 300, default_backend(), lambda: next(ticks)) == 2.0


@pytest.mark.parametrize("broken", ["layer_support", "self_test"])
def test_a_model_that_cannot_be_compressed_loads_with_exact_kv_if_the_plan_chose(
    loaded, monkeypatch, broken: str
):
    def fails(*_: object) -> None:
        raise KeyError("num_hidden_layers")

    if broken == "layer_support":
        monkeypatch.setattr(turboquant, "model_verdict", fails, raising=False)
    else:
        monkeypatch.setattr(policy, "measure", fails)
    caches = choose(loaded, kv_auto=True)
    assert caches.kv is KvFormat.FP16
    assert "kv auto stays fp16" in caches.notes[0]
    with pytest.raises(EngineFault, match="load it with --kv fp16") as refused:
        choose(loaded)
    assert refused.value.kind is FaultKind.UNSUPPORTED


def test_a_model_without_a_layer_to_compress_loads_if_the_plan_chose(loaded, monkeypatch):
    monkeypatch.setattr(turboquant, "model_verdict", lambda *_: Verdict(()), raising=False)
    caches = choose(loaded, kv_auto=True)
    assert caches.kv is KvFormat.FP16
    assert "compresses no layer of this model" in caches.notes[0]
