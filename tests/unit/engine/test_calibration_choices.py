"""What follows from measured speeds: choices that keep the default in doubt, and predictions."""

import json
from dataclasses import replace

import pytest
from calibrations import decoded, prefilled, record
from model_headers import Quant, decoder, write_model
from planned_models import DENSE_8B, M4_PRO_64

from swiftlm_engine.brain import facts, plan
from swiftlm_engine.brain.calibration import (
    BadRecord,
    Choices,
    Record,
    Spread,
    choose,
    decode_s,
    decode_speed,
    prefill_s,
)
from swiftlm_engine.brain.ledger import EntryKind


def test_the_default_chunk_stays_where_another_is_not_clearly_faster() -> None:
    rows = [prefilled(512, 0, 1000.0, noise=0.1), prefilled(256, 0, 1050.0, noise=0.1)]
    assert choose(rows, [decoded(1, 32, 0.1)], default_chunk=512).prefill_chunk == 512


def test_a_chunk_whose_slowest_run_beats_the_fastest_is_chosen() -> None:
    rows = [prefilled(512, 0, 1000.0), prefilled(256, 0, 1400.0)]
    assert choose(rows, [decoded(1, 32, 0.1)], default_chunk=512).prefill_chunk == 256


def test_a_batch_is_as_wide_as_doubling_pays() -> None:
    rows = [decoded(1, 32, 0.1), decoded(2, 32, 0.12), decoded(4, 32, 0.235)]
    chosen = choose([prefilled(512, 0, 1000.0)], rows, default_chunk=512)
    assert chosen.parallel == 2


def test_no_measurement_leaves_a_single_seat_where_batches_run() -> None:
    rows = [decoded(1, 32, 0.1), decoded(2, 32, 0.21), decoded(4, 32, 0.45)]
    assert choose([prefilled(512, 0, 1000.0)], rows, default_chunk=512).parallel == 2


def test_batches_are_compared_where_several_widths_were_measured() -> None:
    rows = [decoded(1, 32, 0.1), decoded(4, 32, 0.11), decoded(1, 16, 0.1)]
    assert choose([prefilled(512, 0, 1000.0)], rows, default_chunk=512).parallel == 4
    assert decode_s(record(decode=tuple(rows)), 32, width=4) == pytest.approx(0.11)


def test_the_pool_holds_the_scratch_of_the_chosen_chunk() -> None:
    chosen = choose([prefilled(512, 0, 1000.0)], [decoded(1, 32, 0.1)], default_chunk=512)
    assert chosen.buffer_cache_bytes == 512_000_000


def test_a_prompt_takes_longer_the_deeper_its_chunks_lie() -> None:
    rows = (prefilled(100, 0, 1000.0), prefilled(100, 100, 500.0))
    found = record(prefill=rows)
    assert prefill_s(found, 200, 100) == pytest.approx(0.1 + 0.2)
    assert prefill_s(found, 300, 100) == pytest.approx(0.1 + 0.2 + 0.3)


def test_noise_that_makes_deeper_chunks_faster_is_not_carried_on() -> None:
    rows = (prefilled(100, 0, 500.0), prefilled(100, 100, 1000.0))
    assert prefill_s(record(prefill=rows), 100_000, 100) == pytest.approx(100_000 / (200 / 0.3))


def test_every_row_of_a_batch_reads_its_own_kv() -> None:
    assert decode_s(record(), 32) == pytest.approx(0.1)
    assert decode_s(record(), 1032) == pytest.approx(0.2)
    assert decode_s(record(), 1032, width=4) == pytest.approx(0.2 + 4 * 0.1)
    assert decode_speed(record(), 32, width=4) == pytest.approx(20)


def test_a_busy_machine_shows_in_what_was_measured_more_than_once() -> None:
    once = replace(prefilled(256, 0, 1000.0), chunk_s=Spread(0.1, 0.1, 0.1, 1))
    steps = (decoded(1, 32, 0.1, noise=0.9), decoded(1, 512, 0.1, noise=0.9))
    assert record(prefill=(once, once, once), decode=steps).noise == pytest.approx(0.9)


def test_a_record_survives_its_json() -> None:
    assert Record.from_json(json.loads(json.dumps(record().to_json()))) == record()


@pytest.mark.parametrize(
    "damage", [{"prefill": []}, {"decode": None}, {"choices": {}}, {"warm_up_s": "long"}]
)
def test_a_damaged_record_is_a_named_error(damage: dict[str, object]) -> None:
    with pytest.raises(BadRecord):
        Record.from_json(record().to_json() | damage)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> facts.ModelFacts:
    folder = tmp_path_factory.mktemp("dense")
    return facts.read_model(write_model(folder, DENSE_8B, decoder(DENSE_8B, Quant(4))))


def planned(dense: facts.ModelFacts, found: Record, **wishes: object) -> plan.Plan:
    measured = plan.calibrated(found, dense, M4_PRO_64.accelerator, None)
    return plan.make_plan(dense, plan.PlanRequest(**wishes), M4_PRO_64, measured)


def test_a_plan_starts_from_what_was_chosen_and_predicts_what_was_measured(
    dense: facts.ModelFacts,
) -> None:
    made = planned(dense, record())
    assert (made.settings.prefill_chunk, made.settings.parallel) == (256, 4)
    assert made.speed.measured
    assert made.speed.prefill.low < 1000 < made.speed.prefill.high
    assert made.speed.decode.low < 1 / decode_s(record(), 0) < made.speed.decode.high
    assert made.to_json()["speed"]["calibrated"]
    assert not made.reductions


def test_what_was_asked_for_is_stronger_than_what_was_measured(dense: facts.ModelFacts) -> None:
    made = planned(dense, record(), prefill_chunk=1024, parallel=2)
    assert (made.settings.prefill_chunk, made.settings.parallel) == (1024, 2)


def test_scratch_is_priced_by_its_measured_ratio(dense: facts.ModelFacts) -> None:
    free = plan.make_plan(dense, plan.PlanRequest(prefill_chunk=256), M4_PRO_64)
    made = planned(dense, record())
    one = planned(dense, record(), context=512, parallel=1)
    assert one.measured.scratch_ratio is not None
    formula, scratch = free.need.of(EntryKind.SCRATCH), made.need.of(EntryKind.SCRATCH)
    assert scratch == pytest.approx(formula * one.measured.scratch_ratio, rel=1e-6)
    assert any(term.source is plan.TermSource.MEASURED for term in made.terms)


def test_kv_is_compressed_from_the_context_on_at_which_that_decodes_faster(
    dense: facts.ModelFacts,
) -> None:
    faster = replace(record(), choices=Choices(256, 4, 2**27, kv_threshold=8192))
    long, short = planned(dense, faster), planned(dense, faster, context=4096)
    assert long.settings.kv is facts.KvFormat.K4V3
    assert "decodes faster" in " ".join(long.reductions)
    assert short.settings.kv is facts.KvFormat.FP16


@pytest.mark.parametrize("chosen", [0, 10**6, 2**27])
def test_the_pool_of_a_record_is_taken_as_it_was_chosen(
    dense: facts.ModelFacts, chosen: int
) -> None:
    found = replace(record(), choices=Choices(256, 4, chosen))
    assert planned(dense, found).engine.buffer_cache_bytes == chosen
    assert planned(dense, found, buffer_cache_bytes=7).engine.buffer_cache_bytes == 7
