"""The Engine service: what the daemon asks, handed to the MLX thread and answered.

Runs on the asyncio thread. It touches no array (what does is handed to the MLX thread), and it
waits for that thread, never the reverse.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from swiftlm_engine.cluster.group import Group
from swiftlm_engine.cluster.rendezvous import gather
from swiftlm_engine.expansion.weights import ExpandedWeights
from swiftlm_engine.isolation.work import Cancelled, Work, doing
from swiftlm_engine.load.device import NoDevice
from swiftlm_engine.messages import EndReason, EngineFault, Event, FaultKind, Finished, GenerateJob
from swiftlm_engine.prefix.cache import PrefixStats
from swiftlm_engine.prompt.prepare import ImageReading, Images, Prepared
from swiftlm_engine.run.event_bridge import LoopThread
from swiftlm_engine.run.malloc_trim import trim
from swiftlm_engine.run.mlx_thread import MlxThread
from swiftlm_engine.run.step_loop import ends_process, failure
from swiftlm_engine.server import tokens, wire
from swiftlm_engine.server.calibration import Calibration
from swiftlm_engine.server.picture_thread import NotWanted, PictureThread
from swiftlm_engine.server.stats import StatsReader
from swiftlm_engine.session.open_session import open_session
from swiftlm_engine.session.session import Session
from swiftlm_engine.streaming.reader import FilesChanged
from swiftlm_proto import messages as m
from swiftlm_proto.exit_codes import GROUP_BROKEN, EngineExit
from swiftlm_proto.version import version

log = logging.getLogger(__name__)

Q = TypeVar("Q")
R = TypeVar("R")

_STAGES = {
    "reading": m.LoadEventStage.READING,
    "weights": m.LoadEventStage.WEIGHTS,
    "checking": m.LoadEventStage.CHECKING,
    "warmup": m.LoadEventStage.WARMUP,
}
WATCH_S = 0.5
MAX_THREADS = 32  # that prepare requests; one has its turn, the others wait for processes
MAX_ANSWERS = 128  # terminal events sent for a request whose n is absurd
RANK_NEWS_S = 2.0  # for the listener of a lost rank to end the process first, naming the rank
FLUSH_S = 0.5  # time that error events have to reach the daemon before the process ends


class EngineService(m.EngineBase):
    """One model's service. `ended` is set when the process shall end, with its exit code."""

    def __init__(self, group: Group | None = None) -> None:
        self._group = group
        self.ended: asyncio.Future[EngineExit] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._mlx = MlxThread(self._on_death, ends_process)
        self._tokenizing = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="tokenize")
        self._turn = threading.Lock()  # guards what requests are prepared with; see isolation/work
        self._pictures = PictureThread()
        self._session: Session | None = None
        self._stats: StatsReader | None = None
        self._steps: asyncio.Queue[list[Event] | None] = asyncio.Queue()  # None: no more
        self._event_bridge = LoopThread(self._loop, self._steps.put_nowait)
        self._flushed = asyncio.Event()  # no stream is open
        self._flushed.set()
        self._accepting = True
        self._preparing: dict[str, Work] = {}  # accepted, still on a thread that prepares
        self._cancelled: set[str] = set()  # of those, aborted meanwhile
        self._num_embedding = 0  # requests
        self._num_questions = 0  # on a tokenizer thread
        self._watching: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._side_pass = asyncio.Lock()  # held for one pass: a step runs between any two of them

    # -- load

    async def load(self, message: m.LoadRequest) -> AsyncIterator[m.LoadEvent]:
        news: asyncio.Queue[m.LoadEvent | None] = asyncio.Queue()

        def report(stage: str, fraction: float, detail: str) -> None:
            event = m.LoadEvent(stage=_STAGES[stage], fraction=fraction, detail=detail)
            self._loop.call_soon_threadsafe(news.put_nowait, event)

        opening = self._mlx.call(self._open, message, report)
        opening.add_done_callback(lambda _: self._loop.call_soon_threadsafe(news.put_nowait, None))
        while (event := await news.get()) is not None:
            yield event
        yield self._load_outcome(opening)

    def _open(self, message: m.LoadRequest, report: Callable[[str, float, str], None]) -> Session:
        if self._session is not None:
            raise EngineFault(FaultKind.INVALID, "this engine process has its model already")
        leader = None
        if self._group is not None:
            report("reading", 0.0, f"starting {self._group.size - 1} other ranks")
            leader = gather(self._group, version())
            leader.watch(_end_with_rank)
        session = open_session(wire.options(message), self._emit, report, leader)
        self._session = session
        self._stats = StatsReader(session, self._mlx)
        self._mlx.drive(session)
        return session

    def _load_outcome(self, opening: Future[Session]) -> m.LoadEvent:
        try:
            session = opening.result()
        except EngineFault as error:
            log.error("load failed: %s", error)
            fault = wire.fault(error)
        except NoDevice as error:
            fault = m.Fault(kind=m.FaultKind.NO_DEVICE, message=str(error))
        except Exception as error:
            log.exception("load failed")
            fault = m.Fault(kind=m.FaultKind.INTERNAL, message=f"load failed: {error!r}")
        else:
            model = wire.loaded_model(session.facts)
            return m.LoadEvent(stage=m.LoadEventStage.READY, fraction=1.0, model=model)
        return m.LoadEvent(stage=m.LoadEventStage.FAILED, fault=fault)

    # -- run

    async def run(self, messages: AsyncIterator[m.GenerateRequest]) -> AsyncIterator[m.StepEvents]:
        reading = asyncio.create_task(self._read_requests(messages))
        self._flushed.clear()
        try:
            while (events := await self._steps.get()) is not None:
                yield wire.step_events(events)
        finally:
            self._flushed.set()
            reading.cancel()

    async def _read_requests(self, messages: AsyncIterator[m.GenerateRequest]) -> None:
        async for request in messages:
            try:
                self._accept(request)
            except EngineFault as error:
                self._refuse(request, error)
            except Exception:
                log.exception("request %s could not be read", request.request_id)
                fault = EngineFault(FaultKind.INTERNAL, "the request could not be read")
                self._refuse(request, fault)

    def _accept(self, request: m.GenerateRequest) -> None:
        session = self._ready()
        if not self._accepting:
            raise EngineFault(FaultKind.SHUTTING_DOWN, "this model is being unloaded")
        job = wire.job(request)
        self._cancelled.discard(job.request_id)  # of an abort that came too late
        work = self._preparing[job.request_id] = Work(self._turn)
        try:
            reading = session.preparer.read_images(job)
        except EngineFault:
            self._preparing.pop(job.request_id, None)
            raise
        if reading is None:
            self._start_preparing(session, job, (), work)
            return
        read = self._pictures.read(reading, lambda: self._wants(job.request_id))
        read.add_done_callback(lambda images: self._take_images(session, job, images, work))

    def _wants(self, request_id: str) -> bool:
        return self._accepting and request_id not in self._cancelled

    def _take_images(
        self, session: Session, job: GenerateJob, read: Future[Images], work: Work
    ) -> None:
        """On the thread of pictures."""
        with self._failing(job, "the pictures"):
            images = read.result()
            self._loop.call_soon_threadsafe(self._start_preparing, session, job, images, work)

    def _start_preparing(
        self, session: Session, job: GenerateJob, images: Images, work: Work
    ) -> None:
        self._watch_preparation(session)
        self._tokenizing.submit(self._prepare, session, job, images, work)

    def _prepare(self, session: Session, job: GenerateJob, images: Images, work: Work) -> None:
        """On a tokenizer thread."""
        with self._failing(job, "the prompt"):
            with doing(work, self._turn):
                prepared = session.preparer.prepare(job, images)
            self._mlx.post(self._submit, session, prepared)

    def _submit(self, session: Session, prepared: Prepared) -> None:
        """On the MLX thread."""
        job = prepared.job
        if job.request_id in self._cancelled:
            self._end_aborted(job)
            return
        self._preparing.pop(job.request_id, None)
        with self._failing(job, "the request"):
            session.engine.submit(prepared)

    @contextlib.contextmanager
    def _failing(self, job: GenerateJob, what: str) -> Iterator[None]:
        """What is raised in the block ends the request, and nothing else."""
        try:
            yield
        except (NotWanted, Cancelled):
            self._end_aborted(job)
        except EngineFault as error:
            self._fail(job, error)
        except BaseException as error:  # native code that panics raises no Exception
            log.exception("%s of %s failed", what, job.request_id)
            self._fail(job, EngineFault(FaultKind.INTERNAL, f"{what} failed: {error!r}"))

    def _end_aborted(self, job: GenerateJob) -> None:
        self._preparing.pop(job.request_id, None)
        self._cancelled.discard(job.request_id)
        news = Finished(EndReason.ABORT)
        count = max(1, min(job.n, MAX_ANSWERS))
        self._emit([Event(job.request_id, i, news) for i in range(count)])

    def _fail(self, job: GenerateJob, error: EngineFault) -> None:
        self._preparing.pop(job.request_id, None)
        self._cancelled.discard(job.request_id)
        count = max(1, min(job.n, MAX_ANSWERS))
        self._emit([failure(job.request_id, i, error) for i in range(count)])

    def _refuse(self, request: m.GenerateRequest, error: EngineFault) -> None:
        count = max(1, min(request.n, MAX_ANSWERS))
        self._emit([failure(request.request_id, i, error) for i in range(count)])

    async def abort(self, message: m.AbortRequest) -> m.AbortReply:
        session = self._session
        if session is None:
            return m.AbortReply(found=False)
        work = self._preparing.get(message.request_id)
        if work is not None:
            self._cancelled.add(message.request_id)
            work.cancel()
        call = self._mlx.call(session.engine.abort, message.request_id)
        found = await asyncio.wrap_future(call)
        if message.request_id not in self._preparing:  # it was queued before the mark was set
            self._cancelled.discard(message.request_id)
        return m.AbortReply(found=found or work is not None)

    # -- questions

    async def stats(self, message: m.StatsRequest) -> m.EngineStats:
        if self._stats is None:
            return m.EngineStats()
        return await self._stats.read()

    async def tokenize(self, message: m.TokenizeRequest) -> m.TokenizeReply:
        try:
            return await self._tokenize(message)
        except EngineFault as error:
            return m.TokenizeReply(fault=wire.fault(error))

    async def _tokenize(self, message: m.TokenizeRequest) -> m.TokenizeReply:
        if message.chat is None:
            return await self._on_tokenizer(tokens.tokenize_text, message)
        job = GenerateJob("", wire.chat(message.chat))
        reading = self._ready().preparer.read_images(job)
        images: Images = ()
        if reading is not None:
            images = await self._read_for_caller(reading)
        question = tokens.ChatToTokenize(job, images, message.with_text)
        return await self._on_tokenizer(tokens.tokenize_chat, question)

    async def _read_for_caller(self, reading: ImageReading) -> Images:
        """Stops between two pictures when the caller goes."""
        waiting = True
        future = self._pictures.read(reading, lambda: waiting and self._accepting)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        finally:
            waiting = False

    async def detokenize(self, message: m.DetokenizeRequest) -> m.DetokenizeReply:
        try:
            return await self._on_tokenizer(tokens.detokenize, message)
        except EngineFault as error:
            return m.DetokenizeReply(fault=wire.fault(error))

    async def embed(self, message: m.EmbedRequest) -> m.EmbedReply:
        try:
            self._refuse_in_group("embeddings")
            texts = await self._on_tokenizer(tokens.embed_ids, message)
            embedder, size = self._ready().embedder, message.dimensions
            with self._counted_as_embedding():
                vectors = [await self._vector(embedder.passes(ids, size)) for ids in texts]
        except EngineFault as error:
            return m.EmbedReply(fault=wire.fault(error))
        except Exception as error:
            log.exception("embeddings failed")
            fault = EngineFault(FaultKind.INTERNAL, f"the model failed: {error}")
            return m.EmbedReply(fault=wire.fault(fault))
        return m.EmbedReply(
            embeddings=[m.Embedding(values=vector) for vector in vectors],
            prompt_tokens=sum(len(ids) for ids in texts),
        )

    async def _vector(self, passes: Generator[None, None, bytes]) -> bytes:
        """Drives the passes over one text, with a step of the engine after each."""

        def turn() -> bytes | None:
            try:
                return next(passes)
            except StopIteration as end:
                vector: bytes = end.value
                return vector

        try:
            while True:
                async with self._side_pass:
                    vector = await asyncio.wrap_future(self._mlx.call(turn))
                if vector is not None:
                    return vector
        finally:
            self._mlx.post(passes.close)  # its caches are freed on the thread that made them

    @contextlib.contextmanager
    def _counted_as_embedding(self) -> Iterator[None]:
        self._num_embedding += 1
        try:
            yield
        finally:
            self._num_embedding -= 1

    async def cache(self, message: m.CacheRequest) -> m.CacheReply:
        session = self._ready()
        prefix = session.prefix

        def act() -> PrefixStats:
            if message.clear:
                prefix.clear()
            if message.expert_slots is not None and session.streaming is not None:
                session.streaming.resize(message.expert_slots)
            if message.expanded is not None and session.expanded is not None:
                _set_expanded(session.expanded, message.expanded)
            if message.clear_pool:
                session.runner.clear_pool()
            if message.resize_bytes is not None:
                prefix.resize(message.resize_bytes)
            trim()  # whoever asks for less wants it back
            return prefix.stats()

        stats = await asyncio.wrap_future(self._mlx.call(act))
        return m.CacheReply(stats=wire.prefix_stats(stats))

    async def calibrate(self, message: m.CalibrationRun) -> AsyncIterator[m.CalibrationEvent]:
        try:
            self._refuse_in_group("calibration")
            session = self._ready()
        except EngineFault as error:
            yield m.CalibrationEvent(fault=wire.fault(error))
            return

        def busy() -> bool:
            here = session.has_work or bool(self._preparing) or self._num_embedding > 0
            return here or not self._accepting

        run = Calibration(session.subject, session.folder.path, self._mlx, busy)
        async with contextlib.aclosing(run.run(full=message.full)) as events:
            async for event in events:
                yield event

    # -- the end

    async def shutdown(self, message: m.EngineShutdownRequest) -> m.EngineShutdownReply:
        asyncio.get_running_loop().create_task(self.stop(message.deadline_s or 10.0))
        return m.EngineShutdownReply()

    async def stop(self, deadline_s: float) -> None:
        """Ends every request with an error event, saves what is worth it, then ends the process."""
        self._accepting = False
        if self._session is not None:
            fault = EngineFault(FaultKind.SHUTTING_DOWN, "the model is being unloaded")
            self._mlx.post(self._session.engine.fail_all, fault)
            self._mlx.post(self._session.prefix.close, deadline_s / 2)
        stopped = await asyncio.to_thread(self._mlx.stop, deadline_s)
        await self._flush()
        self._end(EngineExit.DONE if stopped else EngineExit.STOP_TIMED_OUT)

    async def _flush(self) -> None:
        """Lets the daemon have every event before its stream ends."""
        self._event_bridge.send(None)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._flushed.wait(), FLUSH_S)

    def _on_death(self, error: BaseException) -> None:
        """On the dying MLX thread: whoever waits gets an error, then the process ends, also where
        a broken device cannot even be cleaned up."""
        if self._group is not None:
            time.sleep(RANK_NEWS_S)  # arrays of a broken ring are better not touched again
            _end_with_rank(f"a step failed: {error}")
        code = _exit_code(error)
        threading.Timer(2 * FLUSH_S, os._exit, (code,)).start()
        try:
            if self._session is not None:
                fault = EngineFault(FaultKind.INTERNAL, f"the engine died: {error}")
                self._session.engine.fail_all(fault)
        finally:
            asyncio.run_coroutine_threadsafe(self._flush_and_end(code), self._loop)

    async def _flush_and_end(self, code: EngineExit) -> None:
        await self._flush()
        self._end(code)

    def _end(self, code: EngineExit) -> None:
        if not self.ended.done():
            self.ended.set_result(code)

    # -- between the threads

    def _ready(self) -> Session:
        if self._session is None:
            raise EngineFault(FaultKind.BUSY, "the model is still loading", retry_after_s=1)
        return self._session

    def _refuse_in_group(self, what: str) -> None:
        if self._group is not None:
            message = f"{what} need a model that is loaded on one machine"
            raise EngineFault(FaultKind.UNSUPPORTED, message)

    def _emit(self, events: list[Event]) -> None:
        """From any thread."""
        self._event_bridge.send(events)

    async def _on_tokenizer(self, function: Callable[[Session, Q], R], question: Q) -> R:
        session = self._ready()
        work = Work(self._turn)

        def answer() -> R:
            with doing(work, self._turn):
                return function(session, question)

        self._num_questions += 1
        self._watch_preparation(session)
        try:
            return await self._loop.run_in_executor(self._tokenizing, answer)
        except asyncio.CancelledError:  # the client has left
            work.cancel()
            raise
        finally:
            self._num_questions -= 1

    # -- a tokenizer that hangs

    def _watch_preparation(self, session: Session) -> None:
        if self._watching is None or self._watching.done():
            self._watching = self._loop.create_task(self._watch(session))

    async def _watch(self, session: Session) -> None:
        """Ends the process where native code hangs in it: nothing less ends a thread."""
        while self._preparing or self._num_questions:
            await asyncio.sleep(WATCH_S)
            if stuck := await asyncio.to_thread(session.preparer.encoder.stuck):
                self._end_broken(session, f"its tokenizer {stuck} with one prompt")
                return

    def _end_broken(self, session: Session, reason: str) -> None:
        message = f"the files of model '{session.facts.model}' are broken: {reason}"
        log.critical("%s", message)
        self._accepting = False
        fault = EngineFault(FaultKind.MODEL_BROKEN, message)
        for request_id in list(self._preparing):
            self._emit([failure(request_id, 0, fault)])
        self._mlx.post(session.engine.fail_all, fault)
        threading.Timer(2 * FLUSH_S, os._exit, (EngineExit.MODEL_BROKEN,)).start()
        self._ending = self._loop.create_task(self._flush_and_end(EngineExit.MODEL_BROKEN))


def _set_expanded(weights: ExpandedWeights, expanded: bool) -> None:
    """On the MLX thread, between two steps."""
    try:
        if expanded:
            weights.expand()
        else:
            weights.give_back()
    except (OSError, ValueError, RuntimeError) as error:
        log.warning("quantized weights cannot be read again: %s", error)


def _exit_code(error: BaseException) -> EngineExit:
    if isinstance(error, FilesChanged):
        return EngineExit.FILES_CHANGED
    return EngineExit.GPU_FAULT if ends_process(error) else EngineExit.LOOP_DIED


def _end_with_rank(reason: str) -> None:
    """The MLX thread may wait for the lost rank for ever: only the process's end ends that."""
    log.critical("%s%s", GROUP_BROKEN, reason)
    logging.shutdown()
    os._exit(EngineExit.RANK_LOST)
