"""The Store service of admin.proto: adopting, importing, repairing, finding and weighing models.

Faults travel inside the reply or the last event, as in the Admin service beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Container
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from swiftlm_engine.brain.facts import ModelFacts, SizeFacts, active_share, estimated_facts
from swiftlm_engine.brain.plan import Plan
from swiftlm_proto import messages as m
from swiftlmd.faults import ServiceError
from swiftlmd.store import best, catalogue, fit
from swiftlmd.store.discovery import Offer
from swiftlmd.store.fit import Fit, FitVerdict
from swiftlmd.store.folder import Inspection, inspect
from swiftlmd.store.store import ModelStore
from swiftlmd.store.types import PullProgress, Stage, StoredModel

_LIMIT = 20
_LOOKS_AT_ONCE = 4

Refresh = Callable[[], Awaitable[list[m.ModelStatus]]]


@dataclass(frozen=True, slots=True)
class Basis:
    """What a plan on this machine starts from when every other model gives way."""

    plan: PlansModel


class PlansModel(Protocol):
    def __call__(self, name: str, source: Path | ModelFacts, *, here: bool) -> Plan:
        """By the model's own settings, as a load would be planned; reads files. `here`: its weights
        lie in the folder. Raises BadPlanRequest and ModelFilesError."""


class Planning(Protocol):
    async def __call__(self) -> Basis:
        """Reads the machine; raises ServiceError when it cannot."""


class StoreService(m.StoreBase):
    """`refresh` reads the models again, so that names resolve by what is here now."""

    def __init__(self, store: ModelStore, planning: Planning, refresh: Refresh) -> None:
        self._store = store
        self._planning = planning
        self._refresh = refresh

    async def add(self, message: m.AddModelRequest) -> m.AddModelReply:
        try:
            added = await self._store.add(Path(message.path), message.name)
        except ServiceError as error:
            return m.AddModelReply(fault=error.to_fault())
        return m.AddModelReply(model=await self._status(added.name))

    async def import_(self, message: m.ImportModelRequest) -> AsyncIterator[m.OperationEvent]:
        steps = self._store.import_gguf(Path(message.path), message.name, message.dtype)
        async for event in self._events(steps):
            yield event

    async def repair(self, message: m.RepairModelRequest) -> AsyncIterator[m.OperationEvent]:
        async for event in self._of_model(message.model, self._store.repair):
            yield event

    async def convert(self, message: m.ConvertModelRequest) -> AsyncIterator[m.OperationEvent]:
        def steps(model: str) -> AsyncGenerator[PullProgress, None]:
            bits, group_size = message.bits or 4, message.group_size or 64
            return self._store.quantise(model, message.name, bits, group_size)

        async for event in self._of_model(message.model, steps):
            yield event

    async def pack(self, message: m.PackModelRequest) -> AsyncIterator[m.OperationEvent]:
        pack = partial(self._store.pack, remove=message.remove)
        async for event in self._of_model(message.model, pack):
            yield event

    async def search(self, message: m.SearchModelsRequest) -> m.SearchModelsReply:
        try:
            if message.text:
                offers = await self._store.search(message.text, message.limit or _LIMIT)
                found = [_from_offer(offer) for offer in offers if offer.runs_here]
            else:
                found = [_from_entry(entry) for entry in catalogue.entries()]
            if message.refresh:
                await self._look_at([model.model for model in found])
            listed = await self._weighed(found)
            if not message.text:
                best.mark(listed)
        except ServiceError as error:
            return m.SearchModelsReply(fault=error.to_fault())
        return m.SearchModelsReply(models=[x for x in listed if _wanted(x, message.fits)])

    async def fit(self, message: m.FitModelsRequest) -> m.FitModelsReply:
        models = {model.name: model for model in await self._store.list()}
        paths = {name: model.path for name, model in models.items() if model.ready}
        broken = {
            name: to_message(Fit(FitVerdict.UNKNOWN, 0, 0, detail=model.reason))
            for name, model in models.items()
            if not model.ready
        }
        try:
            for name in message.models:
                if name not in models:
                    paths[name] = (await self._store.outline(name)).path
            basis = await self._planning()
        except ServiceError as error:
            return m.FitModelsReply(fault=error.to_fault())
        names = message.models or sorted(models)
        whole = {name: paths[name] for name in names if name in paths}
        fits = await asyncio.to_thread(_fits, whole, models, basis)
        return m.FitModelsReply(fits={name: fits.get(name) or broken[name] for name in names})

    async def usage(self, message: m.DiskUsageRequest) -> m.DiskUsageReply:
        usage = await self._store.usage()
        rows = [
            m.DiskUsageRow(row.name, str(row.path), row.disk_bytes, row.removable)
            for row in usage.rows
        ]
        return m.DiskUsageReply(rows, usage.total_bytes, usage.free_bytes)

    async def _of_model(
        self, model: str, verb: Callable[[str], AsyncGenerator[PullProgress, None]]
    ) -> AsyncIterator[m.OperationEvent]:
        """The events of `verb`; its model may be given by the path of its folder."""
        try:
            steps = verb(await self._store.name_of(model))
        except ServiceError as error:
            yield m.OperationEvent(fault=error.to_fault())
            return
        async for event in self._events(steps):
            yield event

    async def _events(
        self, steps: AsyncGenerator[PullProgress, None]
    ) -> AsyncIterator[m.OperationEvent]:
        """Every report, then the model as it is listed now, or the fault."""
        last: PullProgress | None = None
        try:
            async with aclosing(steps) as reports:
                async for report in reports:
                    last = report
                    yield to_event(report)
        except ServiceError as error:
            yield m.OperationEvent(fault=error.to_fault())
            return
        assert last is not None, "a job reports at least its end"
        model = await self._status(last.model)
        yield m.OperationEvent("done", 1.0, last.detail, done=True, model=model)

    async def _status(self, name: str) -> m.ModelStatus | None:
        return next((s for s in await self._refresh() if s.model == name), None)

    async def _look_at(self, names: list[str]) -> None:
        """Fetches headers of several repositories; those that fail stay estimated."""
        gate = asyncio.Semaphore(_LOOKS_AT_ONCE)

        async def look(name: str) -> ServiceError | None:
            async with gate:
                try:
                    await self._store.outline(name)
                except ServiceError as error:
                    return error
            return None

        errors = await asyncio.gather(*(look(name) for name in names if "/" in name))
        if errors and all(errors):
            raise next(error for error in errors if error)

    async def _weighed(self, found: list[m.OfferedModel]) -> list[m.OfferedModel]:
        """With verdicts: by the folder or outline that is here, else by an estimate of it."""
        here = {model.name: model for model in await self._store.list() if model.ready}
        basis = await self._planning()

        def weigh() -> None:
            for model in found:
                folder = self._folder(model, here)
                found_fit = (
                    _estimate(model, basis)
                    if folder is None
                    else fit.of_plan_by(
                        partial(basis.plan, model.model, folder, here=model.model in here)
                    )
                )
                model.fit = to_message(found_fit)

        await asyncio.to_thread(weigh)
        return found

    def _folder(self, model: m.OfferedModel, here: dict[str, StoredModel]) -> Path | None:
        """The model's own, else its outline's; what they say of it is taken over."""
        if stored := here.get(model.model):
            model.here = True
            _take_over(model, stored, stored.size_bytes)
            return stored.path
        outline = self._store.known_outline(model.model) if "/" in model.model else None
        if outline is None:
            return None
        model.gated = outline.gated
        model.licence = outline.licence or model.licence
        _take_over(model, inspect(outline.path, outline.path), outline.size_bytes)
        return outline.path


def _fits(paths: dict[str, Path], here: Container[str], basis: Basis) -> dict[str, m.ModelFit]:
    return {
        name: to_message(fit.of_plan_by(partial(basis.plan, name, path, here=name in here)))
        for name, path in paths.items()
    }


def _estimate(model: m.OfferedModel, basis: Basis) -> Fit:
    """Of a model of which neither folder nor outline is here."""
    if model.size_bytes <= 0:
        return Fit(FitVerdict.UNKNOWN, 0, 0, estimated=True)
    facts = estimated_facts(model.model, _size_facts(model))
    return fit.of_plan_by(partial(basis.plan, model.model, facts, here=False), estimated=True)


def _size_facts(model: m.OfferedModel) -> SizeFacts:
    """What the catalogue knows of it, else what its name says."""
    entry = catalogue.entry(model.model)
    if entry is None:
        share = active_share(model.model, model.model_type)
        return SizeFacts(
            model.size_bytes, share, model.context or None, model_type=model.model_type
        )
    share = entry.active_b / entry.parameters_b if entry.active_b else 1.0
    return SizeFacts(model.size_bytes, share, entry.context, entry.bits_per_weight)


def to_event(report: PullProgress) -> m.OperationEvent:
    """Progress on the wire."""
    share = report.done_bytes / report.total_bytes if report.total_bytes else 0.0
    share = 1.0 if report.stage is Stage.DONE else share
    return m.OperationEvent(
        stage=report.stage.value,
        fraction=share,
        detail=report.detail,
        done_bytes=report.done_bytes,
        total_bytes=report.total_bytes,
        bytes_per_s=report.bytes_per_s,
        eta_s=report.eta_s,
    )


def to_message(found: Fit) -> m.ModelFit:
    low, high = found.decode_tokens_s
    return m.ModelFit(
        verdict=found.verdict.value,
        needed_bytes=found.needed_bytes,
        available_bytes=found.available_bytes,
        context=found.context,
        decode_low=low,
        decode_high=high,
        detail=found.detail,
        estimated=found.estimated,
    )


def _from_offer(offer: Offer) -> m.OfferedModel:
    return m.OfferedModel(
        model=offer.repo,
        size_bytes=offer.size_bytes,
        licence=offer.licence,
        quantization=offer.quantization,
        model_type=offer.model_type,
        vision=offer.vision,
        gated=offer.gated,
        downloads=offer.downloads,
    )


def _from_entry(entry: catalogue.CatalogueEntry) -> m.OfferedModel:
    return m.OfferedModel(
        model=entry.repo,
        title=entry.title,
        size_bytes=entry.size_bytes,
        licence=entry.licence,
        quantization=f"{entry.bits_per_weight:g} bits per weight",
        context=entry.context,
        tools=entry.tools,
        reasoning=entry.reasoning,
        vision=entry.vision,
    )


def _take_over(model: m.OfferedModel, seen: StoredModel | Inspection, size_bytes: int) -> None:
    """What the model itself says goes before the catalogue's and the search's estimates."""
    model.size_bytes = size_bytes
    model.licence = seen.licence or model.licence
    if seen.model_type:  # else its configuration could not be read
        model.tools, model.vision = seen.tools, seen.vision
        model.reasoning = seen.reasoning
        model.context, model.quantization = seen.context, seen.quantization


def _wanted(model: m.OfferedModel, only_fitting: bool) -> bool:
    runs = {FitVerdict.FITS.value, FitVerdict.TIGHT.value, FitVerdict.STREAMS.value}
    return not only_fitting or (model.fit is not None and model.fit.verdict in runs)
