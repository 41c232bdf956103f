"""What `status` says of a model's KV: the format per layer, and what a token really takes."""

import json

from swiftlm_proto import messages as m
from swiftlmctl.views import status_table


def notes(kv: str, layers: list[str], stats: m.EngineStats | None = None) -> str:
    loaded = m.LoadedModel(model="m", kv=kv, kv_report=json.dumps({"layers": layers}))
    status = m.ModelStatus(model="m", state=m.ModelStatusState.READY, loaded=loaded, stats=stats)
    return status_table.model_table([status]).rows[0][-1]


def test_format_in_all_layers_is_named_alone():
    assert notes("fp16", ["fp16"] * 4) == "kv fp16"
    assert notes("k4v3", ["k4v3"] * 4) == "kv k4v3"


def test_layers_left_exact_are_counted():
    assert notes("k4v3", ["k4v3", "fp16", "k4v3"]) == "kv k4v3 in 2 of 3 layers"


def test_running_sequences_show_their_real_bytes_and_compressed_tokens():
    stats = m.EngineStats(kv_bytes=5_000_000, kv_tokens=1000, kv_compressed_tokens=896)
    words = notes("k4v3", ["k4v3"] * 2, stats)
    assert words == "kv k4v3, 5.0 kB a token, 896 of 1000 tokens compressed"


def test_engine_that_reports_nothing_per_layer_is_shown_too():
    loaded = m.LoadedModel(model="m", kv="fp16")
    status = m.ModelStatus(model="m", loaded=loaded)
    assert status_table.model_table([status]).rows[0][-1] == "kv fp16"
