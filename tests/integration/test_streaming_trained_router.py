"""A router that was really trained: a prompt of another domain reads, one of the same does not.

Needs a mixture of experts with trained domains in the folder that SWIFTLM_TRAINED_MOE names.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from engine_harness import EngineHarness

from swiftlm_engine.messages import GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings

GREEDY = SamplingSettings(temperature=0.0)
FOLDER = os.environ.get("SWIFTLM_TRAINED_MOE", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="SWIFTLM_TRAINED_MOE names no model folder")
PLAY, CODE = "HAMLET. To be, or not to be", "def parse_args("


def answer(engine, name, prompt):
    job = GenerateJob(name, prompt, GREEDY, max_tokens=16, ignore_eos=True)
    return engine.run(job)[0].content


def test_crossing_domains_moves_the_counters_and_staying_does_not(tmp_path):
    with EngineHarness(Path(FOLDER)) as engine:
        resident = [answer(engine, "p", PLAY), answer(engine, "c", CODE)]
    with EngineHarness(Path(FOLDER), stream_experts="on", expert_slots=48) as engine:
        counters = engine.session.streaming

        def misses(name, prompt):
            before = counters.to_json()["misses"]
            text = answer(engine, name, prompt)
            return text, counters.to_json()["misses"] - before

        first, _ = misses("a", PLAY)
        again, narrow = misses("b", PLAY)
        other, crossing = misses("c", CODE)
        assert [first, other] == resident
        assert again == first
        assert narrow == 0  # its experts are in memory by now
        assert crossing > 20
        assert counters.to_json()["problems"] == []
