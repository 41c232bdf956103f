"""Pictures are decoded beside everything else, once, and never more than a request may hold."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import pytest
from engine_harness import EngineHarness
from tiny_vision import make_vision_model, picture

from swiftlm_engine.messages import EngineFault, GenerateJob
from swiftlm_engine.server.service import EngineService
from swiftlm_engine.text.chat import Chat, ImagePart, Message, TextPart
from swiftlm_engine.vision import reader
from swiftlm_proto import messages as m

RED, BLUE, GREEN = picture(1), picture(2), picture(3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_vision_model("mistral3", tmp_path_factory.mktemp("mistral"))


def job(name: str, *pictures: bytes) -> GenerateJob:
    images = (ImagePart(content, "image/png") for content in pictures)
    return GenerateJob(
        name, Chat((Message("user", (*images, TextPart("what is it"))),)), max_tokens=2
    )


class Loaded:
    """The engine's service in this process, with its requests and what became of them."""

    def __init__(self, service: EngineService) -> None:
        self.service = service
        self.requests: asyncio.Queue[m.GenerateRequest] = asyncio.Queue()
        self.finished: dict[str, m.Finished] = {}
        self._changed = asyncio.Event()

    async def serve(self) -> None:
        async def pending() -> AsyncIterator[m.GenerateRequest]:
            while True:
                yield await self.requests.get()

        async for step in self.service.run(pending()):
            for event in step.events:
                if event.finished is not None:
                    self.finished[event.request_id] = event.finished
                    self._changed.set()

    async def end_of(self, request_id: str) -> m.Finished:
        async with asyncio.timeout(20):
            while request_id not in self.finished:
                self._changed.clear()
                await self._changed.wait()
        return self.finished[request_id]


@pytest.fixture
async def loaded(folder):
    service = EngineService()
    async for event in service.load(m.LoadRequest(model="tiny", path=str(folder))):
        last = event
    assert last.stage is m.LoadEventStage.READY, last.fault
    made = Loaded(service)
    serving = asyncio.create_task(made.serve())
    yield made
    await service.stop(5)
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def wire_chat(*pictures: bytes) -> m.Chat:
    images = [m.Part(image=m.Image(content=one, media_type="image/png")) for one in pictures]
    return m.Chat(messages=[m.Message(role="user", parts=[*images, m.Part(text="what is it")])])


def request(name: str, *pictures: bytes) -> m.GenerateRequest:
    return m.GenerateRequest(request_id=name, chat=wire_chat(*pictures), max_tokens=2)


class SlowDecoder:
    """Holds the thread that decodes until it is let go; the first picture is already there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.goes_on, self.order = threading.Event(), threading.Event(), []
        self._open = reader.open_picture
        monkeypatch.setattr(reader, "open_picture", self)

    def __call__(self, content: bytes) -> object:
        self.order.append(content)
        self.begun.set()
        assert self.goes_on.wait(20)
        return self._open(content)


async def test_text_does_not_wait_for_the_pictures_of_others(loaded, monkeypatch):
    decoder = SlowDecoder(monkeypatch)
    await loaded.requests.put(request("seen", RED, BLUE))
    await asyncio.to_thread(decoder.begun.wait, 20)
    await loaded.requests.put(request("text"))
    count = m.TokenizeRequest(text="how many")
    assert (await asyncio.wait_for(loaded.service.tokenize(count), 20)).ids
    assert (await loaded.end_of("text")).reason is m.FinishedReason.LENGTH
    assert "seen" not in loaded.finished
    decoder.goes_on.set()
    assert (await loaded.end_of("seen")).reason is m.FinishedReason.LENGTH


async def test_an_aborted_request_decodes_no_further_picture(loaded, monkeypatch):
    decoder = SlowDecoder(monkeypatch)
    await loaded.requests.put(request("gone", RED, BLUE, GREEN))
    await asyncio.to_thread(decoder.begun.wait, 20)
    assert (await loaded.service.abort(m.AbortRequest(request_id="gone"))).found
    decoder.goes_on.set()
    assert (await loaded.end_of("gone")).reason is m.FinishedReason.ABORT
    assert decoder.order == [RED]
    assert not loaded.service._preparing
    assert not loaded.service._cancelled


async def test_requests_with_pictures_take_turns(loaded, monkeypatch):
    decoder = SlowDecoder(monkeypatch)
    await loaded.requests.put(request("many", RED, BLUE))
    await asyncio.to_thread(decoder.begun.wait, 20)
    counting = asyncio.create_task(
        loaded.service.tokenize(m.TokenizeRequest(chat=wire_chat(GREEN)))
    )
    await asyncio.sleep(0.05)
    decoder.goes_on.set()
    assert (await counting).ids
    await loaded.end_of("many")
    assert decoder.order == [RED, GREEN, BLUE]


def test_a_picture_is_decoded_once_however_often_it_comes(folder):
    with EngineHarness(folder) as engine:
        images = engine.session.runner.images
        engine.run(job("first", RED, BLUE, RED))
        engine.run(job("second", RED, BLUE, RED, GREEN))
        assert images.num_decoded == 3


def test_decoded_pictures_are_held_within_their_budget(folder, monkeypatch):
    with EngineHarness(folder) as engine:
        images = engine.session.runner.images
        engine.run(job("first", RED))
        (held,) = images._prepared.values()
        monkeypatch.setattr(reader, "PREPARED_BYTES", 2 * held.pixels.nbytes)
        engine.run(job("more", BLUE, GREEN), job("again", GREEN, RED))
        assert images.num_decoded == 4
        assert len(images._prepared) == 2


def test_the_pixels_of_a_request_are_bounded_before_one_is_decoded(folder, monkeypatch):
    monkeypatch.setattr(reader, "MAX_REQUEST_PIXELS", 2 * 48 * 32)
    with EngineHarness(folder) as engine:
        engine.run(job("fits", RED, BLUE, RED, BLUE))
        with pytest.raises(EngineFault, match="image 3 of 3: the pictures up to here") as caught:
            engine.submit(job("too many", RED, GREEN, BLUE))
        assert caught.value.param == "messages"
        assert engine.session.runner.images.num_decoded == 2
