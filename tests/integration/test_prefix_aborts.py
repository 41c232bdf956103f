"""A request that leaves in any phase keeps what its caches hold, under the right tokens.

Promise: whoever asks next hits what was computed and gets the text of a cold run; nothing is
refused. Steps are made by hand, so that every step of a row's life has its turn.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny_models import NAMES, make_model

from swiftlm_engine.load.options import EngineOptions
from swiftlm_engine.messages import Delta, GenerateJob, Started
from swiftlm_engine.prefix.snapshot import LeafKind
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.session.open_session import open_session
from swiftlm_engine.session.session import Session

pytestmark = pytest.mark.usefixtures("on_the_cpu")

GREEDY = SamplingSettings(temperature=0)
PROMPT = tuple(7 + i * i * 13 % 290 for i in range(84))
CHUNK = 48
QUICK = ("llama", "gemma3_text", "qwen3_next", "mamba2")  # plain, windows, states, only states
FAMILIES = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]


class Stepped:
    """A session whose steps a test makes."""

    def __init__(self, folder) -> None:
        self.events = []
        options = EngineOptions(
            model="tiny", folder=folder, prefix_cache_bytes=64 << 20, prefill_chunk=CHUNK
        )
        self.session: Session = open_session(options, self.events.extend, lambda *_: None)

    def submit(self, job: GenerateJob, boundaries: tuple[int, ...] = ()) -> None:
        """`boundaries` are those of a conversation: its end is no checkpoint then."""
        prepared = self.session.preparer.prepare(job)
        prompt = replace(prepared.prompt, boundaries=boundaries)
        self.session.engine.submit(replace(prepared, prompt=prompt))

    def finish(self) -> None:
        for _ in range(500):
            if not self.session.has_work:
                return
            self.session.step()
        raise AssertionError("the engine never came to an end")

    def ids(self, request_id: str) -> list[int]:
        news = [event.news for event in self.events if event.request_id == request_id]
        return [i for delta in news if isinstance(delta, Delta) for i in delta.token_ids]

    def run(self, name: str, prompt=PROMPT, **more) -> list[int]:
        self.events.clear()
        self.submit(job(name, prompt, **more))
        self.finish()
        return self.ids(name)


def job(name: str, prompt=PROMPT, max_tokens: int = 6, **more) -> GenerateJob:
    return GenerateJob(
        name, prompt, GREEDY, max_tokens, ignore_eos=True, return_token_ids=True, **more
    )


@pytest.fixture(scope="module", params=FAMILIES)
def stepped(request, tmp_path_factory) -> Stepped:
    return Stepped(make_model(request.param, tmp_path_factory.mktemp(request.param)))


@pytest.mark.parametrize(
    ("boundaries", "is_resumed"),
    [((40,), False), ((), False), ((), True)],
    ids=["conversation", "prompt", "after a preemption"],
)
def test_abort_after_any_step_keeps_what_was_computed_and_no_more(
    stepped, boundaries, is_resumed, caplog
):
    session = stepped.session
    session.prefix.clear()
    cold = stepped.run("cold", no_cache=True)
    for num_steps in range(6):
        session.prefix.clear()
        stepped.submit(job("leaves", cache_salt=str(num_steps)), boundaries)
        if is_resumed:
            preempt_while_decoding(stepped)
            session.prefix.clear()  # there was no room for it
        for _ in range(num_steps):
            session.step()
        [sequence] = (*session.engine.scheduler.running, *session.engine.scheduler.waiting)
        computed = sequence.prefilled
        session.engine.abort("leaves")
        stepped.finish()
        session.prefix.check_integrity()
        again = f"again {num_steps}"
        before = session.prefix.stats().cached_tokens
        assert stepped.run(again, cache_salt=str(num_steps)) == cold
        cached = session.prefix.stats().cached_tokens - before
        if serves_every_length(session):
            assert cached >= min(computed, len(PROMPT) - 1)
    assert session.prefix.stats().refused_stores == {}
    assert "not stored" not in caplog.text


def serves_every_length(session: Session) -> bool:
    return all(kind is LeafKind.TRUNK for kind in session.prefix._layout.kinds)


def preempt_while_decoding(stepped: Stepped) -> None:
    scheduler = stepped.session.engine.scheduler
    while not (scheduler.running and scheduler.running[0].output_ids):
        stepped.session.step()
    stepped.session.runner.preempt(preempted := scheduler._preempt_youngest())
    assert preempted.num_resumed


@pytest.mark.parametrize("num_steps", range(1, 7))
def test_a_sequence_preempted_after_any_step_is_announced_and_counted_once(tmp_path, num_steps):
    engine = Stepped(make_model("llama", tmp_path))
    prompt, scheduler = PROMPT[:40], engine.session.engine.scheduler
    engine.submit(job("a", prompt, echo=True))
    for _ in range(num_steps):
        engine.session.step()
    planned = scheduler.plan

    def plan_without_memory():
        made = planned()
        if not scheduler._running:
            return made
        victim = scheduler._preempt_youngest()
        chunks = tuple(chunk for chunk in made.chunks if chunk.sequence is not victim)
        decode = tuple(one for one in made.decode if one is not victim)
        return replace(made, preempted=(victim,), chunks=chunks, decode=decode)

    scheduler.plan = plan_without_memory
    engine.session.step()
    scheduler.plan = planned
    engine.finish()
    news = [event.news for event in engine.events]
    assert sum(isinstance(one, Started) for one in news) == 1
    echoes = [n for n in news if isinstance(n, Delta) and n.content and not n.token_ids]
    assert len(echoes) == 1
    assert engine.session.engine.counters.prompt_tokens == len(prompt)
