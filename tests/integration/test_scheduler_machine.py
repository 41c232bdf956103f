"""Scheduler, gate, runner and prefix cache together under random timelines, on a fake model.

After every step: nobody is lost or there twice, caches are held by those who run and by nobody
else, reservations are what is reserved, and every answer is that of the model alone. In the end
everybody has ended, once, within the steps that the rules promise.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import hypothesis.strategies as st
import mlx.core as mx
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from summing_model import SummingModel

from swiftlm_engine.messages import EndReason, EngineFault, FaultKind, Finished, GenerateJob
from swiftlm_engine.prefix.cache import PrefixCache, StoreResult
from swiftlm_engine.prompt.prepare import Prepared, Rendered
from swiftlm_engine.run import runner as runner_module
from swiftlm_engine.run import step_loop as engine_module
from swiftlm_engine.run.decode_batch import Row
from swiftlm_engine.run.event_bridge import EventBuffer
from swiftlm_engine.run.runner import Runner
from swiftlm_engine.run.sequence_output import SequenceOutput
from swiftlm_engine.run.step_loop import StepLoop
from swiftlm_engine.sampling.row import RowSampling
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.schedule.kv_budget import Grant, LimitedKV
from swiftlm_engine.schedule.scheduler import Limits, Scheduler
from swiftlm_engine.schedule.sequence import Phase, Sequence
from swiftlm_engine.text.events import ContentDelta

pytestmark = pytest.mark.usefixtures("on_the_cpu")

GREEDY = SamplingSettings(temperature=0.0)
BUDGET = 245  # tokens of KV: three or four of the larger requests
RAM_BYTES = 200_000
PLANTED = "no buffer to be had"
MISMATCH = StoreResult.MISMATCH.value
GRAIN, SMALL_GRAIN = 40, 8  # tokens by which caches grow: small ones give back less than large ask
FAULTS_OF_LOAD = {FaultKind.BUSY, FaultKind.NOT_ENOUGH_MEMORY}


def price(prompt: int, new: int) -> int:
    grain = SMALL_GRAIN if prompt + new <= GRAIN else GRAIN
    return grain * math.ceil((prompt + new) / grain)


class Tokens:
    """Plays the parser: a token is its number."""

    finish_reason = None
    stop_sequence = None
    should_close_thinking = stopped = in_reasoning = False

    def push(self, token_id: int) -> list[ContentDelta]:
        return [ContentDelta(f"{token_id} ")]

    def finish(self, reason: object) -> list[ContentDelta]:
        return []

    def unanswered(self) -> list[ContentDelta]:
        return []


class World:
    """An engine without text, whose time is made by the steps."""

    def __init__(self, model: SummingModel, parallel: int) -> None:
        self.model = model
        self.now = 0.0
        self.gate = LimitedKV(BUDGET)
        self.prefix = PrefixCache(model.make_caches, RAM_BYTES)
        self.runner = Runner(self._forward, model.make_caches, self.prefix, mx.cpu)
        self.needs_pauses = "plain" not in model.layers or len(set(model.layers)) > 1
        limits = Limits(parallel=parallel, max_queue=6, prefill_chunk=32, reserve_tokens=16)
        self.scheduler = Scheduler(limits, lambda: self.now, self.gate, self.runner.open, price)
        self.engine = StepLoop(
            self.scheduler,
            self.runner,
            self._choices,
            EventBuffer(self._take),
            lambda: self.now,
            BUDGET,
        )
        self.beside_bytes = 0  # KV of texts that are embedded
        self._faults: set[str] = set()  # places that fail when they are next come to
        for name in ("search", "store"):
            self._plant(self.prefix, name)
        self.prompts: dict[str, list[int]] = {}
        self.said: dict[str, list[int]] = {}
        self.ends: dict[str, list[Finished]] = {}

    def fail_at(self, place: str) -> None:
        """As where no buffer can be had."""
        self._faults = {place}

    def _plant(self, owner: object, name: str) -> None:
        sound = getattr(owner, name)

        def call(*args: object, **named: object) -> object:
            if name in self._faults:
                self._faults.discard(name)
                raise RuntimeError(PLANTED)
            return sound(*args, **named)

        setattr(owner, name, call)

    def _forward(self, ids: mx.array, cache: list) -> mx.array:
        if "forward" in self._faults:
            self._faults.clear()
            raise RuntimeError(PLANTED)
        return self.model(ids, cache)

    def hold_beside(self, kv_bytes: int) -> None:
        if self.scheduler.hold_beside(kv_bytes) is Grant.HELD:
            self.beside_bytes += kv_bytes

    def release_beside(self) -> None:
        self.scheduler.release_beside(self.beside_bytes)
        self.beside_bytes = 0

    def submit(self, job: GenerateJob, boundaries: tuple[int, ...]) -> None:
        ids = list(job.prompt)
        kept = tuple(b for b in boundaries if 0 < b < len(ids) - 1) if self.needs_pauses else ()
        prompt = Rendered(ids, kept)
        try:
            self.engine.submit(Prepared(job, GREEDY, prompt, job.max_tokens or 1, (None,)))
        except EngineFault as fault:
            if fault.kind in FAULTS_OF_LOAD:
                return
            raise
        self.prompts[job.request_id] = ids
        self.said[job.request_id], self.ends[job.request_id] = [], []

    def step(self) -> None:
        self.engine.step()
        self.now += 0.05

    def _choices(self, prepared: Prepared, arrived_at: float) -> list[SequenceOutput]:
        job, prompt = prepared.job, prepared.prompt
        deadline = None if job.deadline_s is None else arrived_at + job.deadline_s
        sequence = Sequence(
            job.request_id, 0, prompt.token_ids, prepared.max_tokens, arrived_at,
            boundaries=prompt.boundaries, keeps_chunks=self.needs_pauses and not prompt.boundaries,
            deadline_at=deadline, client=job.client,
        )  # fmt: skip
        row = Row(sequence, RowSampling(GREEDY, prompt.token_ids, 97))
        texts, forget = SimpleNamespace(), lambda *_: None
        return [SequenceOutput(job, sequence, Tokens(), texts, row, frozenset(), forget, (), ())]

    def _take(self, events: list) -> None:
        for event in events:
            if isinstance(event.news, Finished):
                self.ends[event.request_id].append(event.news)
            elif content := getattr(event.news, "content", ""):
                assert not self.ends[event.request_id], "words behind the end"
                self.said[event.request_id] += map(int, content.split())

    def check(self) -> None:
        running, waiting = self.scheduler.running, self.scheduler.waiting
        self.scheduler.check_integrity()
        self.prefix.check_integrity()
        assert self.prefix.nbytes <= RAM_BYTES
        assert MISMATCH not in self.prefix.stats().refused_stores
        assert len({s.key for s in (*running, *waiting)}) == len(running) + len(waiting)
        assert {s.key for s in (*running, *waiting)} == {
            c.sequence.key for c in self.engine.choices
        }
        rows = [row.sequence.key for row in self.runner.batch.rows]
        held = [*self.runner._prefilling, *rows]
        assert sorted(held) == sorted(s.key for s in running if s.is_open)
        assert self.runner._searches.keys() <= {s.key for s in running}
        held_bytes = sum(s.kv_bytes for s in running) + self.beside_bytes
        assert self.gate.reserved_bytes == held_bytes <= BUDGET
        for one in running:
            assert one.kv_bytes == price(len(one.prompt_ids), one.reserved_tokens)
            assert len(one.output_ids) <= one.reserved_tokens
            assert one.phase is not Phase.FINISHED
        assert all(s.kv_bytes == 0 for s in waiting)
        for name, said in self.said.items():
            assert len(self.ends[name]) <= 1
            assert said == self.model.answer(self.prompts[name], len(said))


class EngineMachine(RuleBasedStateMachine):
    layers: tuple[str, ...] = ("plain",)

    def __init__(self) -> None:
        super().__init__()
        self.world = World(SummingModel(self.layers), parallel=4)
        self.num_asked = 0
        clock = SimpleNamespace(perf_counter=self._tick, monotonic=self._tick)
        self._patch = pytest.MonkeyPatch()
        for module in (runner_module, engine_module):
            self._patch.setattr(module, "time", clock)

    def _tick(self) -> float:
        self.world.now += 0.001
        return self.world.now

    @rule(
        steps=st.sampled_from([0, 1, 2, 2, 3, 3, 3, 4, 4, 5, 8]),
        boundaries=st.sampled_from([(), (20,)]),
    )
    def hang_up_and_ask_again(self, steps, boundaries) -> None:
        self.add(2, 30, 40, None, False, "", boundaries)
        name = f"r{self.num_asked}"
        self.step(steps)
        self.world.engine.abort(name)
        self.add(2, 30, 7, None, False, "", boundaries)

    @rule(
        sizes=st.lists(
            st.sampled_from([(1, 7), (3, 30), (5, 250), (30, 250), (60, 120)]),
            min_size=2,
            max_size=6,
        ),
        client=st.sampled_from(["", "other"]),
        steps=st.sampled_from([10, 30, 60]),
    )
    def crowd(self, sizes, client, steps) -> None:
        """More than there is memory for, all at once."""
        for own, max_tokens in sizes:
            self.add(0, own, max_tokens, None, False, client, ())
        self.step(steps)

    @rule(
        common=st.sampled_from([0, 1, 2]),
        own=st.sampled_from([1, 5, 30, 90]),
        max_tokens=st.sampled_from([1, 2, 7, 40, 120, 250]),
        deadline_s=st.sampled_from([None, None, None, 0.3, 2.0]),
        no_cache=st.sampled_from([False, False, True]),
        client=st.sampled_from(["", "", "other"]),
        boundaries=st.sampled_from([(), (20,), (20, 40)]),
    )
    def add(self, common, own, max_tokens, deadline_s, no_cache, client, boundaries) -> None:
        self.num_asked += 1
        prompt = [1 + (i * i + 11 * common) % 90 for i in range(25 * common)]
        prompt += [1 + (i * i + own) % 96 for i in range(own)]  # often one that was asked before
        job = GenerateJob(
            f"r{self.num_asked}", tuple(prompt), GREEDY, max_tokens,
            deadline_s=deadline_s, no_cache=no_cache, client=client,
        )  # fmt: skip
        self.world.submit(job, boundaries)

    @rule(count=st.sampled_from([1, 1, 2, 3, 8, 20]))
    def step(self, count) -> None:
        for _ in range(count):
            self.world.step()
            self.world.check()

    @precondition(lambda self: self.world.scheduler.has_work)
    @rule(which=st.integers(0, 9), also_twice=st.booleans())
    def abort(self, which, also_twice) -> None:
        there = (*self.world.scheduler.running, *self.world.scheduler.waiting)
        name = there[which % len(there)].request_id
        assert self.world.engine.abort(name)
        if also_twice:
            self.world.engine.abort(name)

    @rule(left=st.integers(1, 5000))
    def embed_beside(self, left) -> None:
        count = self.world.scheduler.side_pass_tokens(left)
        assert 0 < count <= left
        self.world.scheduler.side_pass_done(count, 0.001 * count, 0)

    @rule(kv_bytes=st.sampled_from([20, 100, BUDGET]))
    def hold_beside(self, kv_bytes) -> None:
        self.world.hold_beside(kv_bytes)

    @rule()
    def release_beside(self) -> None:
        self.world.release_beside()

    @rule(place=st.sampled_from(["search", "store", "forward"]))
    def fail(self, place) -> None:
        self.world.fail_at(place)

    @rule(seconds=st.sampled_from([0.5, 6.0, 100.0]))
    def wait(self, seconds) -> None:
        self.world.now += seconds

    @rule(nbytes=st.sampled_from([0, 20_000, RAM_BYTES]))
    def press_the_cache(self, nbytes) -> None:
        self.world.prefix.resize(nbytes)

    @invariant()
    def holds(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        try:
            self._run_out()
        finally:
            self._patch.undo()

    def _run_out(self) -> None:
        self.world.release_beside()
        there = (*self.world.scheduler.running, *self.world.scheduler.waiting)
        left = sum(len(s.prompt_ids) + s.max_tokens for s in there)
        for _ in range(20 + 3 * left):  # each step gives somebody a token or a chunk
            if not self.world.scheduler.has_work:
                break
            self.world.step()
        self.world.check()
        assert not self.world.scheduler.has_work, "somebody never ends"
        assert self.world.gate.reserved_bytes == 0
        assert self.world.runner.num_open == 0
        for name, ends in self.world.ends.items():
            assert len(ends) == 1, name
            if ends[0].reason is EndReason.ERROR:
                assert ends[0].fault is not None
                expected = (FaultKind.DEADLINE, FaultKind.NOT_ENOUGH_MEMORY)
                assert ends[0].fault.kind in expected or PLANTED in ends[0].fault.message


KINDS = {
    "plain": ("plain", "plain"),
    "window": ("plain", "window"),
    "state": ("state",),
    "hybrid": ("state", "plain"),
}


def machine(layers: tuple[str, ...]) -> type[EngineMachine]:
    return type("EngineMachine", (EngineMachine,), {"layers": layers})


def run(layers: tuple[str, ...], max_examples: int, steps: int) -> None:
    test_case = machine(layers).TestCase
    test_case.settings = settings(
        max_examples=max_examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    test_case("runTest").runTest()


@pytest.mark.parametrize("kind", KINDS)
def test_short_timelines_lose_nobody(kind):
    run(KINDS[kind], max_examples=50, steps=12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_long_timelines_lose_nobody(kind):
    run(KINDS[kind], max_examples=500, steps=40)
