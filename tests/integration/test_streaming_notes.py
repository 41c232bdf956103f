"""What was asked for and is off while experts stream is said, not dropped in silence."""

from __future__ import annotations

from engine_harness import EngineHarness
from tiny_models import make_model


def test_drafts_and_wide_batches_are_off_while_experts_stream_and_it_is_said(tmp_path):
    folder = make_model("qwen3_moe", tmp_path, num_experts=12)
    asked = {"draft": "ngram", "parallel": 4, "top_k_experts": 1, "expert_slots": 2}
    with EngineHarness(folder, stream_experts="experts", **asked) as engine:
        assert engine.session.facts.parallel == 1
        assert engine.session.runner.batch._speculator is None
        notes = " ".join(engine.session.facts.notes)
    for words in ("drafts are off", "one sequence at a time", "1 experts per token, as asked"):
        assert words in notes
    with EngineHarness(folder, **asked) as engine:
        assert engine.session.facts.parallel == 4
        assert "read from disk" not in " ".join(engine.session.facts.notes)
