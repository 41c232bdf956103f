"""The service between dialects and engines: names, the table of requests, one ending for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fakes import (
    FakeClock,
    FakeLauncher,
    FakeLoadedEngine,
    FakeMemory,
    FakePlanner,
    FakeStore,
    settle,
    stored_model,
)

from swiftlm_proto import messages as m
from swiftlmd.config.settings import Settings
from swiftlmd.faults import Kind, ModelNotFound, ServiceError
from swiftlmd.lifecycle.background_tasks import list_what_was_late
from swiftlmd.lifecycle.instance import this_instance
from swiftlmd.memory import Answer, Device, Level, PressureVerdict
from swiftlmd.memory.machine import Machine
from swiftlmd.memory.thermal import NoThermal
from swiftlmd.residency.residency import Residency
from swiftlmd.residency.self_test import test_engines as ask_each_engine
from swiftlmd.serving.admission import Admission, prompt_tokens
from swiftlmd.serving.names import ModelNames
from swiftlmd.serving.service import DaemonInfo, Service
from swiftlmd.store.reader import STILL_READING

GB = 10**9
STOP = m.Finished(reason=m.FinishedReason.STOP)


class FakeWatch:
    """Memory is as short as a test says; `asked` holds the prices of requests."""

    def __init__(self) -> None:
        self.level = Level.CALM
        self.verdict = PressureVerdict(Answer.ADMIT)
        self.asked: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def admit(self, num_bytes: int) -> PressureVerdict:
        self.asked.append(num_bytes)
        await self.gate.wait()
        return self.verdict


@dataclass(slots=True)
class World:
    clock: FakeClock
    launcher: FakeLauncher
    residency: Residency
    service: Service
    watch: FakeWatch
    settings: Settings
    store: FakeStore

    def engine(self, name: str = "a") -> FakeLoadedEngine:
        return self.launcher.engines[name]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    clock, memory, watch = FakeClock(), FakeMemory(), FakeWatch()
    launcher = FakeLauncher(memory)
    store = FakeStore(stored_model("a", GB), stored_model("org/b", GB))
    residency = Residency(
        clock=clock,
        store=store,
        planner=FakePlanner(memory),
        launcher=launcher,
        footprint=memory.footprint_bytes,
        settings=lambda: world.settings,
    )
    service = Service(
        clock=clock,
        about=DaemonInfo(
            this_instance("1", "x"), "none", Path("c"), Path("l"), lambda: ["a warning"]
        ),
        settings=lambda: world.settings,
        residency=residency,
        store=store,
        machine=Machine(Device(), None, lambda: None, lambda: world.settings, NoThermal()),
        admission=Admission(watch),
    )
    world = World(clock, launcher, residency, service, watch, Settings(models_default="a"), store)
    async with residency:
        yield world


def asked(world: World, request_id: str = "r", model: str = "a", **fields: object):
    request = m.GenerateRequest(request_id=request_id, text="hi", **fields)
    return world.service.generate(model, request, route="chat", client="test")


async def collect(events: AsyncIterator[m.SequenceEvent]) -> list[m.SequenceEvent]:
    return [event async for event in events]


async def test_a_missing_hub_model_is_an_error_unless_the_owner_lets_it_be_fetched(
    world: World,
) -> None:
    store = world.store
    store.hub["org/new"] = stored_model("org/new", GB)
    with pytest.raises(ModelNotFound):
        await collect(asked(world, model="org/new"))
    assert store.pulled == []
    world.settings = replace(world.settings, models_on_missing="pull")
    for request_id in ("first", "second"):
        task = asyncio.create_task(collect(asked(world, request_id, model="org/new")))
        await settle()
        last = m.SequenceEvent(request_id=request_id, finished=STOP)
        world.engine("org/new").client.events.put_nowait(last)
        steps = [event.progress for event in await task if event.progress is not None]
        counted = [step.done_bytes for step in steps if step.total_bytes == 100]
        assert counted == ([0, 50, 100] if request_id == "first" else [])
    assert store.pulled == ["org/new"]


@pytest.mark.parametrize("name", ["/etc/model", "../x", "./a/b", "~/m", "plain", "a/b/c", "-a/b"])
async def test_no_request_fetches_what_is_no_hub_name(world: World, name: str) -> None:
    world.settings = replace(world.settings, models_on_missing="pull")
    with pytest.raises(ServiceError):
        await collect(asked(world, model=name))
    assert world.store.pulled == []


async def test_a_request_that_waits_for_a_download_can_be_cancelled(world: World) -> None:
    world.settings = replace(world.settings, models_on_missing="pull")
    world.store.hub["org/new"] = stored_model("org/new", GB)
    world.store.pull_goes_on.clear()
    task = asyncio.create_task(collect(asked(world, "r", model="org/new")))
    await settle()
    assert world.service.requests.cancel("r")
    world.store.pull_goes_on.set()
    with pytest.raises(ServiceError, match="cancelled"):
        await task
    assert "org/new" not in world.store.models


async def test_tokenizing_fetches_what_a_chat_would_fetch(world: World) -> None:
    world.store.hub["org/new"] = stored_model("org/new", GB)
    with pytest.raises(ModelNotFound):
        await world.service.tokenize("org/new", m.TokenizeRequest(text="hi"))
    world.settings = replace(world.settings, models_on_missing="pull")
    await world.service.tokenize("org/new", m.TokenizeRequest(text="hi"))
    await world.service.detokenize("org/new", m.DetokenizeRequest(ids=[1]))
    assert world.store.pulled == ["org/new"]


async def test_a_request_tells_how_far_the_load_is_that_it_waits_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swiftlmd.serving.service._TELL_S", 0.001)
    world.launcher.gate.clear()
    events = asked(world)
    async with aclosing(events):
        told = (await anext(events)).progress
        assert told == m.Progress(stage="weights", fraction=0.5)
        world.launcher.gate.set()
        while not world.launcher.engines:
            await settle()
        world.engine().client.events.put_nowait(m.SequenceEvent(request_id="r", finished=STOP))
        assert [event.finished async for event in events if event.progress is None] == [STOP]


async def test_a_listener_that_leaves_while_its_model_loads_leaves_no_wait_behind(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swiftlmd.serving.service._TELL_S", 0.001)
    world.launcher.gate.clear()
    before = asyncio.all_tasks()
    events = asked(world)
    async with aclosing(events):
        await anext(events)
    left = {task.get_coro().__name__ for task in asyncio.all_tasks() - before}
    assert "_leased" not in left
    world.launcher.gate.set()
    await settle()
    assert world.residency.residents[0].leases == 0


async def test_a_model_that_was_late_to_be_read_is_listed_again(world: World) -> None:
    late = replace(stored_model("slow", GB), ready=False, reason=f"/slow {STILL_READING}")
    world.store.models["slow"] = late
    await world.service.list_models()
    task = asyncio.create_task(
        list_what_was_late(
            lambda: world.service.reads_models, world.service.list_models, world.clock
        )
    )
    world.store.models["slow"] = stored_model("slow", GB)
    await world.clock.advance(6)
    rows = {row.model: row for row in (await world.service.status()).models}
    assert rows["slow"].state is m.ModelStatusState.CACHED
    assert not world.service.reads_models
    task.cancel()


async def test_a_request_is_listed_while_it_runs_and_counted_when_it_ends(world: World) -> None:
    task = asyncio.create_task(collect(asked(world)))
    await settle()
    row = world.service.requests.listed()[0]
    assert (row.request_id, row.model, row.route, row.client) == ("r", "a", "chat", "test")
    assert (await world.service.status()).in_flight == 1
    world.engine().client.events.put_nowait(m.SequenceEvent(request_id="r", finished=STOP))
    assert [event.finished for event in await task] == [STOP]
    status = await world.service.status()
    assert (status.in_flight, status.requests, status.errors) == (0, 1, 0)
    assert status.warnings == ["a warning"]


async def test_a_request_without_a_temperature_gets_its_models_sampling(world: World) -> None:
    task = asyncio.create_task(collect(asked(world)))
    await settle()
    client = world.engine().client
    client.events.put_nowait(m.SequenceEvent(request_id="r", finished=STOP))
    await task
    sampling = client.requests[0].sampling
    assert (sampling.temperature, sampling.top_k) == (0.5, 20)


def _death(request_id: str = "r") -> m.SequenceEvent:
    fault = m.Fault(kind=Kind.INTERNAL, message="it was killed")
    finished = m.Finished(reason=m.FinishedReason.ERROR, fault=fault)
    return m.SequenceEvent(request_id=request_id, finished=finished)


async def test_a_request_that_was_in_a_dying_engine_is_not_sent_to_the_next(
    world: World,
) -> None:
    task = asyncio.create_task(collect(asked(world)))
    await settle()
    world.engine().die(-11)
    world.engine().client.events.put_nowait(_death())
    assert [event.finished.fault.message for event in await task] == ["it was killed"]
    await settle()
    assert world.engine().client.requests == []
    assert world.residency.residents[0].crashes.total == 1


@pytest.mark.parametrize("when", ["it waits for memory", "it is handed over"])
async def test_a_request_that_never_reached_a_dying_engine_is_answered_by_the_next(
    world: World, when: str
) -> None:
    await _once(world)
    dead = world.engine()
    if when == "it waits for memory":
        world.watch.level = Level.SOFT
        world.watch.gate.clear()
    else:

        async def refuse(request: m.GenerateRequest) -> AsyncIterator[m.SequenceEvent]:
            dead.die(-9)
            raise ServiceError(Kind.INTERNAL, "the engine is gone")
            yield

        dead.client.generate = refuse
    task = asyncio.create_task(collect(asked(world)))
    await settle()
    dead.die(-9)
    world.watch.gate.set()
    await settle()
    assert world.engine() is not dead
    world.engine().client.events.put_nowait(m.SequenceEvent(request_id="r", finished=STOP))
    assert [event.finished for event in await task] == [STOP]
    assert (await world.service.status()).errors == 0


async def test_an_embedding_whose_engine_died_while_it_waited_for_memory_goes_to_the_next(
    world: World,
) -> None:
    await _once(world)
    world.watch.level = Level.SOFT
    world.watch.gate.clear()
    task = embedding(world)
    await settle()
    dead = world.engine()
    dead.die(-9)
    world.watch.gate.set()
    await settle()
    assert world.engine() is not dead
    world.engine().client.embedding.put_nowait(m.EmbedReply())
    await task


async def test_a_request_under_way_when_its_engine_dies_ends_in_that_error(world: World) -> None:
    task = asyncio.create_task(collect(asked(world)))
    await settle()
    engine = world.engine()
    engine.client.events.put_nowait(m.SequenceEvent(request_id="r", started=m.Started()))
    engine.die(-9)
    engine.client.events.put_nowait(_death())
    assert [bool(event.finished) for event in await task] == [False, True]


async def test_closing_the_events_aborts_the_request_and_gives_the_lease_back(
    world: World,
) -> None:
    async with aclosing(asked(world)) as events:
        waiting = asyncio.create_task(anext(events))
        await settle()
        world.engine().client.events.put_nowait(
            m.SequenceEvent(request_id="r", delta=m.Delta(content="x"))
        )
        await waiting
    assert world.engine().client.aborted == ["r"]
    assert world.residency.residents[0].leases == 0
    assert world.service.requests.idle.is_set()


async def test_a_request_that_waits_for_its_model_can_be_cancelled(world: World) -> None:
    world.launcher.gate.clear()
    task = asyncio.create_task(collect(asked(world)))
    await settle()
    assert world.service.requests.cancel("r")
    with pytest.raises(ServiceError) as caught:
        await task
    assert caught.value.kind is Kind.ABORTED
    assert not world.service.requests.cancel("r")
    world.launcher.gate.set()


async def test_a_request_that_waits_for_memory_can_be_cancelled(world: World) -> None:
    world.watch.level = Level.SOFT
    world.watch.gate.clear()
    task = asyncio.create_task(collect(asked(world)))
    await settle()
    assert world.service.requests.cancel("r")
    world.watch.gate.set()
    with pytest.raises(ServiceError) as caught:
        await task
    assert caught.value.kind is Kind.ABORTED


async def test_cancelling_a_running_request_reaches_the_engine(world: World) -> None:
    task = asyncio.create_task(collect(asked(world)))
    await settle()
    assert world.service.requests.cancel("r")
    events = await task
    assert events[-1].finished.reason is m.FinishedReason.ABORT
    assert (await world.service.status()).errors == 0


async def test_cancelling_a_clients_id_ends_all_its_engine_requests(world: World) -> None:
    tasks = [asyncio.create_task(collect(asked(world, f"r.{n}"))) for n in range(2)]
    other = asyncio.create_task(collect(asked(world, "r2")))
    await settle()
    assert world.service.requests.cancel("r")
    assert sorted(world.engine().client.aborted) == ["r.0", "r.1"]
    for task in (*tasks, other):
        task.cancel()
    await asyncio.gather(*tasks, other, return_exceptions=True)


async def test_two_requests_may_not_share_an_id(world: World) -> None:
    task = asyncio.create_task(collect(asked(world)))
    await settle()
    with pytest.raises(ServiceError) as caught:
        await collect(asked(world))
    assert caught.value.kind is Kind.INVALID
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_while_draining_new_requests_are_refused_and_running_ones_go_on(
    world: World,
) -> None:
    task = asyncio.create_task(collect(asked(world)))
    await settle()
    world.service.draining = True
    with pytest.raises(ServiceError) as caught:
        await collect(asked(world, "late"))
    assert caught.value.kind is Kind.SHUTTING_DOWN
    assert caught.value.retry_after_s > 0
    world.engine().client.events.put_nowait(m.SequenceEvent(request_id="r", finished=STOP))
    await task


def embedding(world: World) -> asyncio.Task[m.EmbedReply]:
    request = m.EmbedRequest(inputs=[m.EmbedInput(text="hi")])
    return asyncio.create_task(world.service.embed("a", request, request_id="e", client="test"))


@pytest.mark.parametrize(
    "ask",
    [
        lambda service: service.tokenize("a", m.TokenizeRequest(text="hi")),
        lambda service: service.detokenize("a", m.DetokenizeRequest(ids=[1])),
        lambda service: service.embed("a", m.EmbedRequest()),
    ],
)
async def test_nothing_loads_a_model_while_draining(world: World, ask) -> None:
    world.service.draining = True
    with pytest.raises(ServiceError) as caught:
        await ask(world.service)
    assert caught.value.kind is Kind.SHUTTING_DOWN
    assert not world.residency.residents


async def test_texts_that_are_embedded_are_a_request_that_stopping_waits_for(
    world: World,
) -> None:
    task = embedding(world)
    await settle()
    row = world.service.requests.listed()[0]
    assert (row.request_id, row.model, row.route) == ("e", "a", "embeddings")
    assert row.state.phase == "prefill"
    assert not world.service.requests.idle.is_set()
    world.engine().client.embedding.put_nowait(m.EmbedReply(prompt_tokens=3))
    assert (await task).prompt_tokens == 3
    assert world.service.requests.idle.is_set()


async def test_embedding_can_be_cancelled_and_gives_its_lease_back(world: World) -> None:
    task = embedding(world)
    await settle()
    assert world.service.requests.cancel("e")
    with pytest.raises(ServiceError) as caught:
        await task
    assert caught.value.kind is Kind.ABORTED
    assert world.residency.residents[0].leases == 0


async def test_embedding_a_text_is_refused_while_there_is_no_memory_for_it(world: World) -> None:
    world.watch.level = Level.HARD
    world.watch.verdict = PressureVerdict(
        Answer.REFUSE, (), "needs 3.0 GB, the machine has 1.0 GB left"
    )
    with pytest.raises(ServiceError, match="no memory for this request to 'a': needs 3") as caught:
        await asyncio.wait_for(embedding(world), 5)
    assert caught.value.retry_after_s > 0
    assert len(world.watch.asked) == 1
    assert world.residency.residents[0].leases == 0


async def test_memory_is_asked_for_only_when_it_is_short(world: World) -> None:
    await _once(world)
    assert world.watch.asked == []
    world.watch.level = Level.SOFT
    await _once(world)
    assert len(world.watch.asked) == 1


async def test_a_request_without_room_is_refused_with_the_reason_and_no_lease_stays(
    world: World,
) -> None:
    world.watch.level = Level.HARD
    world.watch.verdict = PressureVerdict(
        Answer.REFUSE, (), "needs 3.0 GB, the machine has 1.0 GB left"
    )
    with pytest.raises(ServiceError) as caught:
        await collect(asked(world))
    assert caught.value.kind is Kind.NOT_ENOUGH_MEMORY
    assert "needs 3.0 GB, the machine has 1.0 GB left" in caught.value.message
    assert (caught.value.status, caught.value.retry_after_s) == (503, 5)
    assert world.residency.residents[0].leases == 0
    world.watch.verdict = PressureVerdict(Answer.REFUSE, (), "needs 30.0 GB", never=True)
    with pytest.raises(ServiceError) as caught:
        await collect(asked(world))
    assert (caught.value.status, caught.value.retry_after_s) == (507, 0)


def test_prompts_of_every_form_are_estimated() -> None:
    chat = m.Chat(messages=[m.Message(role="user", parts=[m.Part(text="x" * 400)])])
    assert prompt_tokens(m.GenerateRequest(chat=chat)) == 100
    assert prompt_tokens(m.GenerateRequest(text="x" * 40)) == 10
    assert prompt_tokens(m.GenerateRequest(token_ids=m.TokenIds(ids=[1, 2, 3]))) == 3
    assert prompt_tokens(m.GenerateRequest(infill=m.Infill(prefix="abcd", suffix="efgh"))) == 2


async def test_an_unknown_model_is_not_found_and_names_the_known(world: World) -> None:
    with pytest.raises(ModelNotFound) as caught:
        await collect(asked(world, model="nope"))
    assert "a, org/b" in caught.value.message
    assert "did you mean" not in caught.value.message
    assert (await world.service.status()).errors == 1


async def test_a_name_with_a_slip_is_told_the_one_that_was_meant(world: World) -> None:
    with pytest.raises(ModelNotFound, match=r"did you mean 'org/b'\?"):
        await collect(asked(world, model="Org/bb"))


async def test_models_are_listed_with_what_is_loaded_of_them(world: World) -> None:
    await asyncio.create_task(_once(world))
    rows = {row.model: row.state for row in await world.service.list_models()}
    assert rows == {"a": m.ModelStatusState.READY, "org/b": m.ModelStatusState.CACHED}


async def test_after_waking_every_engine_is_asked_for_a_token_and_a_silent_one_is_ended(
    world: World,
) -> None:
    await _once(world)
    engine = world.engine()
    engine.client.events.put_nowait(m.SequenceEvent(finished=STOP))
    await ask_each_engine(world.residency, world.clock)
    assert engine.killed_for == ""
    task = asyncio.create_task(ask_each_engine(world.residency, world.clock))
    await world.clock.advance(61)
    await task
    assert "woke" in engine.killed_for


@pytest.mark.parametrize("kind", [m.FaultKind.INTERNAL, m.FaultKind.BUSY])
async def test_after_waking_an_engine_whose_passes_fail_is_ended(
    world: World, kind: m.FaultKind
) -> None:
    await _once(world)
    engine = world.engine()
    fault = m.Fault(kind=kind, message="the model failed: a command buffer was lost")
    failed = m.Finished(reason=m.FinishedReason.ERROR, fault=fault)
    engine.client.events.put_nowait(m.SequenceEvent(finished=failed))
    await ask_each_engine(world.residency, world.clock)
    assert ("woke" in engine.killed_for) is (kind is m.FaultKind.INTERNAL)


async def woken(world: World, stats: Callable[[float], m.EngineStats | None]) -> str:
    """Why a busy engine was ended within two minutes after waking, by what it says of itself."""
    await _once(world)
    engine, woke_at = world.engine(), world.clock.now()
    engine.client.busy.set()
    task = asyncio.create_task(ask_each_engine(world.residency, world.clock))
    for _ in range(120):
        engine.client.stats_reply = stats(world.clock.now() - woke_at)
        await world.clock.advance(1)
    assert task.done()
    assert [r for r in engine.client.requests if r.request_id.startswith("self-test")] == []
    return engine.killed_for


async def test_after_waking_a_busy_engine_that_steps_is_not_asked_and_not_ended(
    world: World,
) -> None:
    busy = m.EngineStats(running=1)
    assert await woken(world, lambda s: replace(busy, steps=int(s))) == ""
    assert await woken(world, lambda s: replace(busy, step_age_s=s % 10)) == ""


async def test_after_waking_a_busy_engine_that_does_not_step_is_ended(world: World) -> None:
    assert "woke" in await woken(world, lambda s: m.EngineStats(running=1, step_age_s=s))


async def test_after_waking_a_busy_engine_that_says_nothing_is_ended(world: World) -> None:
    assert "woke" in await woken(world, lambda s: None)


async def test_after_waking_an_engine_that_becomes_idle_is_asked(world: World) -> None:
    await _once(world)
    engine = world.engine()
    engine.client.busy.set()
    engine.client.stats_reply = m.EngineStats(running=1, step_age_s=1.0)
    task = asyncio.create_task(ask_each_engine(world.residency, world.clock))
    await world.clock.advance(5)
    engine.client.busy.clear()
    engine.client.stats_reply = m.EngineStats()
    await world.clock.advance(2)
    assert engine.client.requests[-1].request_id.startswith("self-test")
    engine.client.events.put_nowait(m.SequenceEvent(finished=STOP))
    await settle()
    assert task.done()
    assert engine.killed_for == ""


async def _once(world: World) -> None:
    task = asyncio.create_task(collect(asked(world)))
    await settle()
    world.engine().client.events.put_nowait(m.SequenceEvent(request_id="r", finished=STOP))
    await task


def names(latest: str | None = None, **settings: object) -> ModelNames:
    found = ModelNames(lambda: replace(Settings(), **settings), lambda: latest)
    found.learn(["small", "org/large", "claude-local"])
    return found


@pytest.mark.parametrize(
    ("asked_for", "meant"),
    [
        ("org/large", "org/large"),
        (" small ", "small"),
        ("", "small"),
        ("default", "small"),
        ("claude-opus-5", "small"),
        ("claude-local", "claude-local"),  # what is here goes before a pattern
        ("gpt-4", "org/large"),
        ("gpt-4-mini", "small"),  # the longer pattern says more
        ("nonsense", "nonsense"),
    ],
)
def test_names_mean_what_is_here_then_aliases_then_patterns(asked_for: str, meant: str) -> None:
    aliases = {"claude-*": "default", "gpt-*": "org/large", "gpt-4-*": "small"}
    found = names(models_default="small", models_aliases=aliases)
    assert found.resolve(asked_for) == meant


def test_unknown_names_mean_the_default_where_the_operator_wants_that() -> None:
    found = names(models_default="small", models_unknown="default")
    assert found.resolve("nonsense") == "small"


def test_a_default_that_is_not_here_gives_way_to_the_model_used_last() -> None:
    assert names("org/large", models_default="gone").resolve("") == "org/large"
    assert names(None, models_default="gone").resolve("") == "gone"


def test_the_default_may_itself_be_an_alias() -> None:
    found = names(models_default="fast", models_aliases={"fast": "small", "x": "default"})
    assert found.resolve("x") == "small"


def test_names_in_the_configuration_that_mean_nothing_are_told() -> None:
    found = names("org/large", models_default="gone", models_aliases={"fast": "lost", "x": "small"})
    assert found.warnings() == [
        "models.aliases: 'fast' means 'lost', which is not here",
        "models.default: 'gone' is not here; requests that name no model get 'org/large'",
    ]
    assert names(None, models_default="gone").warnings() == [
        "models.default: 'gone' is not here; requests that name no model are refused"
    ]
    assert names(models_default="x", models_aliases={"x": "small", "y": "default"}).warnings() == []
    assert names().warnings() == []  # nobody chose the usual one
    assert ModelNames(lambda: Settings(models_default="gone"), lambda: None).warnings() == []


def _bring(world: World, name: str) -> None:
    """Another program copies a model; nobody tells the daemon."""
    store: FakeStore = world.service._store  # type: ignore[assignment]
    store.models[name] = stored_model(name, GB)


@pytest.mark.parametrize(
    ("settings", "asked_for"),
    [
        (Settings(models_default="a", models_unknown="default"), "newcomer"),
        (Settings(models_default="a", models_aliases={"new*": "a"}), "newcomer"),
        (Settings(models_default="a", models_aliases={"new*": "default"}), "newcomer"),
        (Settings(models_default="newcomer"), ""),
        (Settings(models_default="newcomer"), "default"),
        (Settings(models_default="pet", models_aliases={"pet": "newcomer"}), ""),
    ],
)
async def test_a_model_that_came_unannounced_is_preferred_to_any_rule(
    world: World, settings: Settings, asked_for: str
) -> None:
    world.settings = settings
    await world.service.list_models()
    async with world.residency.lease("a"):
        pass  # the model that was used last
    _bring(world, "newcomer")
    assert await world.service.named(asked_for) == "newcomer"


async def test_a_name_that_is_known_costs_no_look_at_the_disk(world: World) -> None:
    world.settings = Settings(models_default="a", models_aliases={"mine": "org/b"})
    await world.service.list_models()
    world.service._store.list = None  # type: ignore[assignment, method-assign]
    for name, meant in (("org/b", "org/b"), ("mine", "org/b"), ("", "a"), ("default", "a")):
        assert await world.service.named(name) == meant


async def test_what_the_end_of_a_drain_cuts_says_that_the_service_stops(world: World) -> None:
    task = asyncio.create_task(collect(asked(world)))
    await settle()
    world.service.draining = True
    fault = m.Fault(kind=Kind.SHUTTING_DOWN, message="the model is being unloaded")
    finished = m.Finished(reason=m.FinishedReason.ERROR, fault=fault)
    world.engine().client.events.put_nowait(m.SequenceEvent(request_id="r", finished=finished))
    (event,) = await task
    assert "the service is stopping" in event.finished.fault.message
