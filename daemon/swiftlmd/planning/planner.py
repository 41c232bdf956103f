"""From settings to a plan, and from the plan to what the engine is told.

The arithmetic is `swiftlm_engine.brain.plan`; this file only translates. The same plan drives the
load, `status`, `swiftlmctl plan` and the words of a refusal.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Protocol

from swiftlm_engine.brain import vision
from swiftlm_engine.brain.facts import ModelFacts, ModelFilesError, read_model, weight_files
from swiftlm_engine.brain.plan import (
    Accelerator,
    BadPlanRequest,
    CpuWeights,
    MachineLimits,
    Plan,
    PlanRequest,
    Strategy,
    Toggle,
    Way,
    best_way,
    calibrated,
    make_plan,
    parse_budget,
)
from swiftlm_engine.brain.plan.share import Split
from swiftlm_proto import messages as m
from swiftlm_proto.layers import ALL_LAYERS
from swiftlm_proto.paths import Paths
from swiftlmd.calibration.store import CalibrationStore, Manner
from swiftlmd.config.settings import Settings
from swiftlmd.config.values import size_bytes
from swiftlmd.engines.placement import NOTHING_ELSEWHERE, OnHosts, Placement
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.hosts.survey import Survey
from swiftlmd.planning.disk_speeds import DiskSpeeds, streamed_record_bytes
from swiftlmd.planning.draft import FindModel, draft_source
from swiftlmd.planning.spread import spread
from swiftlmd.store.sampling_defaults import sampling_profile
from swiftlmd.store.types import StoredModel

_PREFIX_DISK_AUTO = 20 * 10**9


class LimitsReader(Protocol):
    """Readings of the machine, in the planner's form; called in a thread."""

    def __call__(self, *, committed_bytes: int, returning_bytes: int) -> MachineLimits: ...


class ModelPlanner:
    """Implements `placement.Planner`."""

    def __init__(
        self,
        paths: Paths,
        limits: LimitsReader,
        disks: DiskSpeeds,
        calibrations: CalibrationStore,
        survey: Survey | None = None,
        find: FindModel | None = None,
    ) -> None:
        self._paths = paths
        self._survey = survey
        self._find = find
        self._limits = limits
        self._disks = disks
        self._calibrations = calibrations
        self._facts: dict[Path, tuple[tuple[int, ...], ModelFacts]] = {}

    async def place(
        self,
        model: StoredModel,
        settings: Settings,
        *,
        held_bytes: int,
        returning_bytes: int,
        elsewhere: OnHosts = NOTHING_ELSEWHERE,
        force: bool = False,
    ) -> Placement:
        draft = settings.engine_draft
        if self._find is not None:
            draft = await draft_source(draft, self._find)
        limits = await asyncio.to_thread(
            self._limits, committed_bytes=held_bytes, returning_bytes=returning_bytes
        )
        try:
            way = await asyncio.to_thread(self._way, model, settings, limits, elsewhere, force)
            plan = way.ranks[0].plan if way else None
            if plan is None:
                plan = await asyncio.to_thread(
                    self.weigh, model.path, settings, limits, force=force, here=model.ready
                )
            sampling = await asyncio.to_thread(
                sampling_profile, model.path, settings.engine_sampling
            )
        except ModelFilesError as error:
            message = f"model '{model.name}' cannot be loaded: {error}"
            raise ServiceError(Kind.MODEL_BROKEN, message) from error
        except BadPlanRequest as error:
            message = f"model '{model.name}' cannot be loaded as asked: {error}"
            raise ServiceError(Kind.INVALID, message) from error
        placement = Placement(
            request=self._load_request(model, settings, plan, draft),
            needed_bytes=plan.total_bytes,
            fits=not plan.refused,
            refusal=f"model '{model.name}' {plan.summary}",
            plan=json.dumps(plan.to_json() | {"here": model.ready}),
            forced=plan.forced,
            expanded_bytes=plan.expansion.added_bytes if plan.expansion else 0,
            price_request=plan.request_bytes,
            environment=plan.environment,
            sampling=sampling,
        )
        return placement if way is None else spread(placement, way, self._read(model.path))

    def _way(
        self,
        model: StoredModel,
        settings: Settings,
        limits: MachineLimits,
        elsewhere: OnHosts,
        force: bool,
    ) -> Way | None:
        """Over the hosts of the group; None for a model of one process, or hosts nobody can ask."""
        if not settings.engine_cluster or self._survey is None:
            return None
        facts = self._read(model.path)
        hosts = self._survey.hosts(settings, model.name, facts.fingerprint, limits, elsewhere)
        if len(hosts) < 2:
            return None
        request = plan_request(settings, limits, force=force)
        way = best_way(facts, request, hosts, asked_split(settings))
        if not way.ranks:
            message = f"model '{model.name}' cannot be split over {len(hosts)} hosts"
            raise ServiceError(Kind.UNSUPPORTED, f"{message}: {way.obstacle}")
        return way

    def weigh(
        self,
        source: Path | ModelFacts,
        settings: Settings,
        limits: MachineLimits,
        *,
        force: bool = False,
        here: bool = True,
    ) -> Plan:
        """The one way to a plan, for loads and lists alike; reads files, so call it in a thread.

        `here`: the weights lie in the folder, so that the disk may be measured by them. Raises
        ModelFilesError and BadPlanRequest.
        """
        facts = source if isinstance(source, ModelFacts) else self._read(source)
        request = plan_request(settings, limits, force=force)
        plan = make_plan(facts, request, limits)
        if plan.refused:
            return plan
        if here and (record := streamed_record_bytes(plan)):
            limits = self._disks.applied(limits, facts.path, record)
            plan = make_plan(facts, request, limits)
        return self._calibrated(plan, request, limits)

    def _calibrated(self, plan: Plan, request: PlanRequest, limits: MachineLimits) -> Plan:
        """The plan by what was measured, if it is still a plan to run the model as it ran then."""
        kept = self._calibrations.find(plan.facts.fingerprint, limits)
        if kept is None or load_conditions(plan) != kept.manner:
            return plan
        dtype = plan.request.dtype
        measured = calibrated(kept.record, plan.facts, limits.accelerator, dtype)
        better = make_plan(plan.facts, request, limits, measured)
        return better if load_conditions(better) == kept.manner else plan

    def _read(self, folder: Path) -> ModelFacts:
        """The folder's facts, read again only when something in it changed."""
        stamp = _stamp(folder)
        known = self._facts.get(folder)
        if known is None or known[0] != stamp:
            known = self._facts[folder] = (stamp, read_model(folder))
        return known[1]

    def _load_request(
        self, model: StoredModel, settings: Settings, plan: Plan, draft: str
    ) -> m.LoadRequest:
        disk, expansion = prefix_disk_bytes(settings), plan.expansion
        return m.LoadRequest(
            model=model.name,
            path=str(model.path),
            context=plan.settings.context,
            parallel=plan.rows,
            prefill_chunk=plan.settings.prefill_chunk,
            kv=plan.settings.kv.value,
            kv_auto=settings.engine_kv == "auto",
            prefix_cache_bytes=plan.engine.prefix_cache_bytes,
            prefix_cache_dir=str(prefix_root(self._paths)) if disk else "",
            prefix_cache_dir_bytes=disk,
            dtype=settings.engine_dtype,
            exact=settings.engine_exact,
            memory_limit_bytes=plan.engine.memory_limit_bytes,
            buffer_cache_bytes=plan.engine.buffer_cache_bytes,
            max_queue=settings.engine_max_queue,
            wired_bytes=plan.engine.wired_bytes,
            draft=draft,
            gpu_layers=ALL_LAYERS if plan.gpu_layers is None else plan.gpu_layers,
            stream_experts=_stream_mode(plan),
            expert_slots=plan.streaming.slots if plan.streaming else 0,
            resident_bytes=plan.engine.resident_bytes,
            top_k_experts=settings.engine_top_k_experts,
            expand_head=expansion.head if expansion else False,
            expand_attention_layers=expansion.attention_layers if expansion else 0,
            expand_mlp_layers=expansion.mlp_layers if expansion else 0,
            ssd_nocache=settings.engine_ssd_nocache,
            ssd_prefetch=settings.engine_ssd_prefetch,
            ssd_threads=plan.machine.speed.ssd_threads,
            template_kwargs=dict(settings.engine_template_kwargs),
            kv_budget_bytes=plan.engine.kv_budget_bytes,
            prefill_slice_ms=settings.engine_prefill_slice_ms,
            draft_tokens=settings.engine_draft_tokens,
            config_dir=str(self._paths.state),
        )


def plan_request(settings: Settings, limits: MachineLimits, *, force: bool = False) -> PlanRequest:
    """What the settings ask of a plan; 0 and "auto" leave it to the plan."""
    dtype = settings.engine_dtype
    if not dtype and limits.accelerator is Accelerator.CPU:
        dtype = "float32"  # what the engine loads with there
    ram = limits.ram_bytes
    return PlanRequest(
        context=settings.engine_context or None,
        parallel=settings.engine_parallel or None,
        kv=settings.engine_kv,
        budget_bytes=parse_budget(settings.engine_memory_budget, limits),
        dtype=dtype or None,
        prefill_chunk=settings.engine_prefill_chunk or None,
        stream=Toggle(settings.engine_stream_experts),
        expert_slots=settings.engine_expert_slots or None,
        top_k_experts=settings.engine_top_k_experts or None,
        gpu_layers=_gpu_layers(settings.engine_gpu_layers),
        prefix_cache_bytes=size_bytes(settings.engine_prefix_cache, ram),
        prefix_disk=prefix_disk_bytes(settings) > 0,
        buffer_cache_bytes=size_bytes(settings.engine_buffer_cache, ram),
        images=vision.is_installed() and not settings.engine_cluster,
        wire=settings.engine_wire == "auto",
        cpu_weights=CpuWeights(settings.engine_cpu_weights),
        force=force,
    )


def asked_split(settings: Settings) -> Split | None:
    """How a model is to be cut; None: as the plan finds best."""
    asked = settings.engine_cluster_split
    return None if asked == "auto" else Split(asked)


def load_conditions(plan: Plan) -> Manner:
    """What a record must have been measured as, to say something of this plan."""
    dtype = plan.request.dtype or plan.facts.dtype
    expanded = plan.expansion.note if plan.expansion else ""
    return Manner(plan.strategy.value, dtype, plan.gpu_layers, expanded)


def _stream_mode(plan: Plan) -> str:
    if plan.strategy is not Strategy.STREAMED:
        return "off"
    return "experts" if plan.layers is None else "layers"


def prefix_root(paths: Paths) -> Path:
    return paths.cache / "prefix"


def prefix_disk_bytes(settings: Settings) -> int:
    """Bytes on disk that KV may take; a share means one of 100 GB."""
    size = size_bytes(settings.engine_prefix_disk, 100 * 10**9)
    return _PREFIX_DISK_AUTO if size is None else size


def _gpu_layers(text: str) -> int | None:
    if text == "all":
        return None
    if text == "auto":
        return -1
    if text.isdecimal():
        return int(text)
    raise BadPlanRequest(f"engine.gpu_layers {text!r}: give all, auto or a number of layers")


def _stamp(folder: Path) -> tuple[int, ...]:
    try:
        files = [folder, folder / "config.json", *weight_files(folder)]
        return tuple(path.stat().st_mtime_ns for path in files)
    except OSError:
        return ()
