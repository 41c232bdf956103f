"""When the words of a step are told: the first and the last at once, the others with the next."""

import pytest
from engine_harness import EngineHarness
from tiny_models import make_model

from swiftlm_engine.messages import GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings

PROMPT = tuple(range(5, 45))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with EngineHarness(make_model("llama", tmp_path_factory.mktemp("event_buffer"))) as harness:
        yield harness


def test_a_token_is_told_once_the_next_step_is_built_and_before_it_computes(engine, monkeypatch):
    batch, event_buffer, order = (
        engine.session.runner.batch,
        engine.session.engine._event_buffer,
        [],
    )
    forward, send = batch._forward, event_buffer._send

    def built(inputs):
        order.append("step")
        return forward(inputs)

    def sending(events):
        order.append("told")
        send(events)

    monkeypatch.setattr(batch, "_forward", built)
    monkeypatch.setattr(event_buffer, "_send", sending)
    job = GenerateJob("r", PROMPT, SamplingSettings(temperature=0), max_tokens=4, ignore_eos=True)
    (answer,) = engine.run(job)
    assert answer.finished.usage.completion_tokens == 4
    first_word = ["step", "told", "told"]  # the answer has begun, its first token
    unread = ["step", "step"]  # the second token's, and the third's before it is read
    others = ["step", "told"] * 2  # the second token and the third, each once a step is built
    assert order == [*first_word, *unread, *others, "told"]
