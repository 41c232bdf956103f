"""The Admin service of admin.proto: each call is handed to the part that answers it.

Faults of an operation travel inside its reply or its last event; only a broken call is a gRPC
error.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any  # JSON values

import grpclib

from swiftlm_engine.brain.prefix_folders import PrefixFolders
from swiftlm_proto import messages as m
from swiftlmd.admin.doctor import Doctor
from swiftlmd.admin.load_options import options_over
from swiftlmd.admin.log_files import LineFilter, Tail, follow, last_lines
from swiftlmd.calibration import CalibrationAdmin
from swiftlmd.config.keys import Keys
from swiftlmd.config.live import Changes, ConfigEntry, LiveConfiguration
from swiftlmd.config.load import ConfigError, place_of, unknown_option
from swiftlmd.engines.placement import Planner
from swiftlmd.faults import Kind, ModelNotFound, ServiceError
from swiftlmd.http.metrics import Metrics
from swiftlmd.http.sessions import Sessions
from swiftlmd.lifecycle.supervisor import Supervisor
from swiftlmd.planning.draft import draft_source
from swiftlmd.serving.service import Service
from swiftlmd.store import ModelStore
from swiftlmd.store.errors import BadModelName
from swiftlmd.store.names import is_hub_name, is_path
from swiftlmd.store.service import to_event
from swiftlmd.store.types import ModelSource, StoredModel

_STAGES = {
    m.LoadEventStage.READING: "reading",
    m.LoadEventStage.WEIGHTS: "weights",
    m.LoadEventStage.WARMUP: "warm-up",
    m.LoadEventStage.CHECKING: "checking",
    m.LoadEventStage.READY: "ready",
    m.LoadEventStage.FAILED: "failed",
}


class AdminService(m.AdminBase):
    """Thin on purpose."""

    def __init__(
        self,
        *,
        service: Service,
        store: ModelStore,
        planner: Planner,
        configuration: LiveConfiguration,
        log_folder: Path,
        memory: Callable[[], dict[str, Any]],
        doctor: Doctor,
        shut_down: Callable[[float | None, bool], None],
        took_over: Callable[[Changes], None],
        calibration: CalibrationAdmin,
        sessions: Sessions,
        metrics: Metrics,
        prefixes: PrefixFolders,
    ) -> None:
        self._service = service
        self._store = store
        self._configuration = configuration
        self._keys = Keys(configuration)
        self._changing_keys = asyncio.Lock()  # guards read, change and write of `http.keys`
        self._shut_down = shut_down
        self._took_over = took_over
        self._memory = memory
        self._doctor = doctor
        self._planner = planner
        self._calibration = calibration
        self._sessions = sessions
        self._metrics = metrics
        self._prefixes = prefixes
        self._log_folder = log_folder

    async def _named(self, model: str) -> str:
        """What the owner of this machine calls a model: a name, or the path of its folder, which is
        listed from then on. Raises ServiceError for a folder that holds no model."""
        if not is_path(model):
            return await self._service.named(model)
        try:
            return await self._store.name_of(model)
        except BadModelName:
            return (await self._store.add(Path(model))).name

    async def status(self, message: m.StatusRequest) -> m.DaemonStatus:
        return await self._service.status()

    async def watch_status(self, message: m.WatchStatusRequest) -> AsyncIterator[m.DaemonStatus]:
        while True:
            yield await self._service.status()
            await asyncio.sleep(max(0.1, message.interval_s or 1.0))

    async def load(self, message: m.LoadModelRequest) -> AsyncIterator[m.OperationEvent]:
        try:
            name = await self._named(message.model)
            settings = options_over(self._configuration.settings.for_model(name), message.options)
            async for event in self._service.residency.load(
                name, settings, pin=message.pin, force=message.force
            ):
                yield m.OperationEvent(
                    stage=_STAGES.get(event.stage, ""),
                    fraction=event.fraction,
                    detail=event.detail,
                )
            model = await self._model(name)
            yield m.OperationEvent(stage="ready", fraction=1.0, done=True, model=model)
        except ServiceError as error:
            yield m.OperationEvent(fault=error.to_fault())

    async def unload(self, message: m.UnloadModelRequest) -> m.UnloadModelReply:
        try:
            name = await self._named(message.model)
            done = await self._service.residency.unload(name, force=message.force)
        except ServiceError as error:
            return m.UnloadModelReply(fault=error.to_fault())
        return m.UnloadModelReply(
            was_loaded=done.was_loaded, freed_bytes=done.freed_bytes, pid=done.pid
        )

    async def pin(self, message: m.PinModelRequest) -> m.PinModelReply:
        try:
            name = await self._named(message.model)
            self._service.residency.pin(name, message.pinned)
        except ServiceError as error:
            return m.PinModelReply(fault=error.to_fault())
        return m.PinModelReply()

    async def list_keys(self, message: m.ListKeysRequest) -> m.ListKeysReply:
        return m.ListKeysReply(names=self._keys.names, unnamed=self._keys.num_unnamed)

    async def add_key(self, message: m.AddKeyRequest) -> m.AddKeyReply:
        try:
            async with self._changing_keys:
                until = int(time.time()) + message.expires_in_s if message.expires_in_s else 0
                add = partial(self._keys.add, is_admin=message.admin, expires_at=until)
                name, key, changes = await asyncio.to_thread(add, message.name)
        except (ServiceError, ConfigError) as error:
            return m.AddKeyReply(fault=_fault(error))
        self._took_over(changes)
        return m.AddKeyReply(name=name, key=key)

    async def remove_key(self, message: m.RemoveKeyRequest) -> m.RemoveKeyReply:
        try:
            async with self._changing_keys:
                changes = await asyncio.to_thread(self._keys.remove, message.name)
        except (ServiceError, ConfigError) as error:
            return m.RemoveKeyReply(fault=_fault(error))
        self._took_over(changes)
        return m.RemoveKeyReply()

    async def open_session(self, message: m.OpenSessionRequest) -> m.OpenSessionReply:
        status = await self._service.status()
        return m.OpenSessionReply(url=self._sessions.address(status.http_address))

    async def list_models(self, message: m.ListModelsRequest) -> m.ListModelsReply:
        return m.ListModelsReply(models=await self._service.list_models())

    async def pull(self, message: m.PullRequest) -> AsyncIterator[m.OperationEvent]:
        if message.cancel:
            found = await self._store.cancel(message.model)
            yield m.OperationEvent(done=True, detail="" if found else "no such pull is under way")
            return
        name, detail = message.model, ""
        try:
            steps = self._store.pull(message.model, message.revision, message.include, message.name)
            async with aclosing(steps) as reports:
                async for report in reports:
                    # A folder or a GGUF file gets a name of its own.
                    name, detail = report.model or name, report.detail
                    yield to_event(report)
            model = await self._model(name)
            yield m.OperationEvent("done", 1.0, detail, done=True, model=model)
        except ServiceError as error:
            yield m.OperationEvent(fault=error.to_fault())

    async def remove_model(self, message: m.RemoveModelRequest) -> m.RemoveModelReply:
        try:
            name = await self._store.name_of(message.model)
            removed, kept = await self._store.remove(name, dry_run=True), 0
            if not message.dry_run:  # what cannot be removed stays loaded
                async with self._service.residency.removing(name):
                    removed = await self._store.remove(name, dry_run=False)
                # What was said to it goes with the model.
                kept = await asyncio.to_thread(self._prefixes.delete, name)
        except ServiceError as error:
            return m.RemoveModelReply(fault=error.to_fault())
        await self._service.list_models()  # names resolve by what is here now
        return m.RemoveModelReply(
            freed_bytes=removed.freed_bytes + kept, paths=[str(path) for path in removed.paths]
        )

    async def get_config(self, message: m.GetConfigRequest) -> m.ConfigReply:
        try:
            entries = self._configuration.entries(message.key)
        except ConfigError as error:
            return self._bad_config(str(error))
        if message.key and not entries:
            return self._bad_config(str(unknown_option(message.key)))
        return m.ConfigReply(
            entries=[_entry(entry) for entry in entries], path=str(self._configuration.path)
        )

    async def set_config(self, message: m.SetConfigRequest) -> m.ConfigReply:
        try:
            if message.unset:
                changes = await asyncio.to_thread(self._configuration.unset, message.key)
            else:
                if place_of(message.key).name == "draft":  # else each request would be told
                    await draft_source(message.value, self._store.find)
                changes = await asyncio.to_thread(
                    self._configuration.set, message.key, message.value
                )
        except (ServiceError, ConfigError) as error:
            return self._bad_config(str(error))
        self._took_over(changes)
        return await self.get_config(m.GetConfigRequest(key=message.key))

    async def reload_config(self, message: m.ReloadConfigRequest) -> m.ConfigReply:
        try:
            changes = await asyncio.to_thread(self._configuration.reload)
        except ConfigError as error:
            return self._bad_config(str(error))
        self._took_over(changes)
        return m.ConfigReply(
            entries=[_entry(entry) for entry in self._configuration.changed(changes)],
            path=str(self._configuration.path),
        )

    async def shutdown(self, message: m.ShutdownRequest) -> m.ShutdownReply:
        in_flight = len(self._service.requests)
        status = await self._service.status()
        if message.restart and status.supervisor == Supervisor.NONE:
            reason = "nobody would start it again; run `swiftlmctl restart`"
            raise grpclib.GRPCError(grpclib.Status.FAILED_PRECONDITION, reason)
        if message.restart:
            await self._refuse_broken_file()
        self._shut_down(0.0 if message.now else message.deadline_s or None, message.restart)
        return m.ShutdownReply(in_flight=in_flight, pid=status.pid)

    async def generate(self, message: m.AdminGenerateRequest) -> AsyncIterator[m.SequenceEvent]:
        request = message.request or m.GenerateRequest()
        request.client = "swiftlmctl"
        try:
            name = await self._named(message.model)
            with self._metrics.generation("admin", name) as tally:
                events = self._service.generate(name, request, route="admin", client="swiftlmctl")
                async with aclosing(events):
                    async for event in events:
                        tally.note(event)
                        yield event
        except ServiceError as error:
            finished = m.Finished(reason=m.FinishedReason.ERROR, fault=error.to_fault())
            yield m.SequenceEvent(request_id=request.request_id, finished=finished)

    async def logs(self, message: m.LogsRequest) -> AsyncIterator[m.LogLine]:
        name = "launchd.log" if message.stderr else "swiftlmd.log"
        path = self._log_folder / name
        wanted = LineFilter(message.level, message.since, message.request_id)
        # Opened first: what is written while the caller reads the last lines comes after them.
        tail = await asyncio.to_thread(Tail, path) if message.follow else None
        try:
            last = partial(last_lines, path, message.lines or 100, wanted, tail)
            for line in await asyncio.to_thread(last):
                yield m.LogLine(line=line, file=name)
            if tail is not None:
                async with aclosing(follow(tail, wanted)) as added:
                    async for line in added:
                        yield m.LogLine(line=line, file=name)
        finally:
            if tail is not None:
                tail.close()

    async def plan(self, message: m.PlanModelRequest) -> m.PlanModelReply:
        residency = self._service.residency
        try:
            name = await self._named(message.model)
            stored = await self._store.find(name) or await self._outlined(name)
            settings = options_over(self._configuration.settings.for_model(name), message.options)
            place = partial(self._planner.place, stored, settings)
            others = residency.held_bytes(besides=name)
            own = residency.held_bytes(only=name)
            elsewhere = residency.held_elsewhere(name)
            placement = await place(held_bytes=others, returning_bytes=own, elsewhere=elsewhere)
            if not placement.fits and others:  # a load would have the idle ones leave
                placement = await place(held_bytes=0, returning_bytes=others + own)
        except ServiceError as error:
            return m.PlanModelReply(fault=error.to_fault())
        return m.PlanModelReply(plan=placement.plan)

    async def _outlined(self, name: str) -> StoredModel:
        """A model of the hub by its configuration and headers, before anything is fetched."""
        if not is_hub_name(name):
            raise ModelNotFound(name, [model.name for model in await self._store.list()])
        outline = await self._store.outline(name)
        return StoredModel(
            name=name,
            path=outline.path,
            source=ModelSource.HUB,
            size_bytes=outline.size_bytes,
            ready=False,
            reason="not fetched",
            model_type="",
            context=0,
            quantization="",
            vision=False,
        )

    async def memory(self, message: m.MemoryRequest) -> m.MemoryReply:
        return m.MemoryReply(ledger=json.dumps(self._memory()))

    async def calibrate(self, message: m.CalibrateRequest) -> AsyncIterator[m.OperationEvent]:
        try:
            name = await self._named(message.model)
            async with aclosing(self._calibration.calibrate(name, full=message.full)) as events:
                async for event in events:
                    yield event
        except ServiceError as error:
            yield m.OperationEvent(fault=error.to_fault())

    async def calibrations(self, message: m.CalibrationsRequest) -> m.CalibrationsReply:
        try:
            name = await self._named(message.model) if message.model else ""
            return await self._calibration.answer(name, message)
        except ServiceError as error:
            return m.CalibrationsReply(fault=error.to_fault())

    async def doctor(self, message: m.DoctorRequest) -> m.DoctorReply:
        return m.DoctorReply(checks=await self._doctor.examine())

    async def cache_control(self, message: m.CacheControlRequest) -> m.CacheControlReply:
        stats: dict[str, m.PrefixStats] = {}
        deleted: dict[str, int] = {}
        try:
            wanted = await self._named(message.model) if message.model else ""
        except ServiceError as error:
            return m.CacheControlReply(fault=error.to_fault())
        fault = None
        for resident in self._service.residency.residents:
            if resident.engine is not None and wanted in ("", resident.name):
                try:
                    request = m.CacheRequest(clear=message.clear)
                    reply = await resident.engine.client.cache(request)
                    stats[resident.name] = reply.stats or m.PrefixStats()
                except ServiceError as error:  # the others, and the disk, are cleared all the same
                    fault = error.to_fault()
        if message.clear:
            names = {wanted, message.model} - stats.keys()  # a model that is gone has its own
            deleted = await self._delete_prefixes(names if message.model else None)
        return m.CacheControlReply(stats=stats, deleted_bytes=deleted, fault=fault)

    async def _delete_prefixes(self, models: set[str] | None) -> dict[str, int]:
        """On disk, of models that are not loaded; None: of all."""

        def delete() -> dict[str, int]:
            if models is None:
                return self._prefixes.delete_all()
            return {model: self._prefixes.delete(model) for model in sorted(models)}

        freed = await asyncio.to_thread(delete)
        return {name: nbytes for name, nbytes in freed.items() if nbytes}

    async def requests(self, message: m.RequestsRequest) -> m.RequestsReply:
        return m.RequestsReply(requests=self._service.requests.listed())

    async def cancel(self, message: m.CancelRequest) -> m.CancelReply:
        return m.CancelReply(found=self._service.requests.cancel(message.request_id))

    async def _refuse_broken_file(self) -> None:
        try:
            await asyncio.to_thread(self._configuration.check_file)
        except ConfigError as error:
            reason = f"{error}; nothing was restarted"
            raise grpclib.GRPCError(grpclib.Status.FAILED_PRECONDITION, reason) from error

    def _bad_config(self, message: str) -> m.ConfigReply:
        fault = m.Fault(kind=Kind.INVALID, message=message)
        return m.ConfigReply(fault=fault, path=str(self._configuration.path))

    async def _model(self, name: str) -> m.ModelStatus | None:
        models = await self._service.list_models()
        return next((model for model in models if model.model == name), None)


def _fault(error: ServiceError | ConfigError) -> m.Fault:
    if isinstance(error, ServiceError):
        return error.to_fault()
    return m.Fault(kind=Kind.INVALID, message=str(error))


def _entry(entry: ConfigEntry) -> m.ConfigEntry:
    return m.ConfigEntry(
        key=entry.key,
        value=entry.value,
        origin=entry.origin,
        description=entry.help,
        needs_restart=entry.needs_restart,
        type=entry.form,
        default_value=entry.default,
    )
