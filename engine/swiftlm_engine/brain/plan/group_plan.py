"""Where a model runs that may be spread over hosts: on one, or over how many, and cut which way.

Each rank's plan is `make_plan` of its share on its machine. One host wins if the model fits there;
else the fewest hosts, and of two ways over as many the one that decodes faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from swiftlm_engine.brain.facts import ModelFacts
from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.brain.plan.expansion import CpuWeights
from swiftlm_engine.brain.plan.group import split_layers
from swiftlm_engine.brain.plan.group_speed import LinkSpeed, Traffic, group_speed, slowest
from swiftlm_engine.brain.plan.machine import Accelerator, Covers, MachineLimits, gigabytes
from swiftlm_engine.brain.plan.obstacles import pipeline_obstacle, tensor_obstacle
from swiftlm_engine.brain.plan.planner import make_plan
from swiftlm_engine.brain.plan.request import (
    MIN_CONTEXT,
    PlanRequest,
    Settings,
    Toggle,
    auto_context,
)
from swiftlm_engine.brain.plan.result import Plan, Strategy
from swiftlm_engine.brain.plan.share import Share, Split, share_facts
from swiftlm_engine.brain.plan.speed import PredictedSpeed


@dataclass(frozen=True, slots=True)
class GroupHost:
    """A machine and its link to the leader; the leader has none.

    `layers`: those whose files are there; None = all, or files yet to come.
    """

    name: str
    machine: MachineLimits
    link: LinkSpeed | None = None
    layers: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class GroupRank:
    """What one host holds. `plan` is of this share alone."""

    host: GroupHost
    share: Share
    plan: Plan

    @property
    def weight_bytes(self) -> int:
        return self.plan.need.of(EntryKind.WEIGHTS)

    @property
    def kv_bytes_per_token(self) -> int:
        settings, dtype = self.plan.settings, self.plan.request.dtype
        return round(sum(self.plan.facts.kv_bytes_per_token(settings.kv, dtype).values()))


@dataclass(frozen=True, slots=True)
class Way:
    """One way over several hosts; `obstacle` says why it is none, or is empty."""

    split: Split
    hosts: int
    ranks: tuple[GroupRank, ...] = ()
    speed: PredictedSpeed | None = None
    obstacle: str = ""

    @property
    def fits(self) -> bool:
        return not self.obstacle

    @property
    def decode(self) -> float:
        """The middle of what is predicted."""
        return (self.speed.decode.low + self.speed.decode.high) / 2 if self.speed else 0.0


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """`way` is None where one host does, or nothing does; `alone` is the leader's plan."""

    hosts: tuple[GroupHost, ...]
    alone: Plan
    ways: tuple[Way, ...]
    way: Way | None

    @property
    def fits(self) -> bool:
        return self.way is not None or not self.alone.refused


def make_group_plan(
    facts: ModelFacts, request: PlanRequest, hosts: Sequence[GroupHost]
) -> GroupPlan:
    """`hosts[0]` leads. Raises BadPlanRequest for nonsense."""
    alone = make_plan(facts, request, hosts[0].machine)
    ways = tuple(_ways(facts, _group_request(facts, request, hosts[0].machine), hosts))
    way = None
    if alone.strategy is not Strategy.RESIDENT:
        fitting = [way for way in ways if way.fits]
        way = min(fitting, key=lambda way: (way.hosts, -way.decode), default=None)
    return GroupPlan(tuple(hosts), alone, ways, way)


def best_way(
    facts: ModelFacts,
    request: PlanRequest,
    hosts: Sequence[GroupHost],
    split: Split | None = None,
) -> Way:
    """Over exactly these hosts, cut as asked. Else what fits before what does not, and what is
    short of memory before what no memory would help; of two that fit the one that decodes faster.
    """
    request = _group_request(facts, request, hosts[0].machine)
    tensor, pipeline = _tensor(facts, request, hosts), _pipeline(facts, request, hosts)
    if split is not None:
        return tensor if split is Split.TENSOR else pipeline
    if not tensor.ranks and not pipeline.ranks:
        return replace(pipeline, obstacle=f"{tensor.obstacle}; {pipeline.obstacle}")
    return max((tensor, pipeline), key=lambda way: (way.fits, bool(way.ranks), way.decode))


def _group_request(facts: ModelFacts, request: PlanRequest, leader: MachineLimits) -> PlanRequest:
    """What ranks can do: everything in memory, one dtype on all."""
    dtype = None if request.dtype == "auto" else request.dtype
    usual = "float32" if leader.accelerator is Accelerator.CPU else facts.dtype
    return replace(
        request,
        dtype=dtype or (facts.dtype if request.dtype else usual),
        stream=Toggle.OFF,
        expert_slots=None,
        gpu_layers=None,
        cpu_weights=CpuWeights.KEEP,  # ranks cut the weights as they are stored
    )


def _ways(facts: ModelFacts, request: PlanRequest, hosts: Sequence[GroupHost]) -> Iterator[Way]:
    for count in range(2, len(hosts) + 1):
        yield _tensor(facts, request, hosts[:count])
        yield _pipeline(facts, request, hosts[:count])


def _tensor(facts: ModelFacts, request: PlanRequest, hosts: Sequence[GroupHost]) -> Way:
    count = len(hosts)
    if obstacle := tensor_obstacle(facts, count):
        return Way(Split.TENSOR, count, obstacle=obstacle)
    if part := next((host for host in hosts if host.layers is not None), None):
        return Way(Split.TENSOR, count, obstacle=f"{part.name} has files of some layers only")
    share = Share(Split.TENSOR, range(len(facts.layers)), count)
    return _way(facts, request, hosts, [share] * count)


def _pipeline(facts: ModelFacts, request: PlanRequest, hosts: Sequence[GroupHost]) -> Way:
    if obstacle := pipeline_obstacle(facts, len(hosts)):
        return Way(Split.PIPELINE, len(hosts), obstacle=obstacle)
    rooms = [_room(facts, request, host) for host in hosts]
    for host, room in zip(hosts, rooms, strict=True):
        if room <= 0:
            obstacle = f"{host.name} has no room for any layer"
            return Way(Split.PIPELINE, len(hosts), obstacle=obstacle)
    try:
        held = [host.layers for host in hosts]
        ranges = split_layers(_layer_bytes(facts, request), rooms, held)
    except ValueError as error:
        return Way(Split.PIPELINE, len(hosts), obstacle=str(error))
    return _way(facts, request, hosts, [Share(Split.PIPELINE, layers) for layers in ranges])


def _layer_bytes(facts: ModelFacts, request: PlanRequest) -> list[int]:
    """Of each layer: its weights, and its KV at the least context that makes sense."""
    cast = facts.cast_itemsize(request.dtype)
    kv = facts.kv_bytes(0, _least_context(facts, request), dtype=request.dtype)
    return [weights.bytes_as(cast) + kv // len(facts.layers) for weights in facts.weights.layers]


def _least_context(facts: ModelFacts, request: PlanRequest) -> int:
    return request.context or min(auto_context(facts), MIN_CONTEXT)


def _room(facts: ModelFacts, request: PlanRequest, host: GroupHost) -> int:
    """What the host can give to layers: its tightest limit, less what every rank holds."""
    least = replace(request, context=_least_context(facts, request), parallel=1)
    own = 0 if host.link is None else 1  # the first layer's rank is the leader's
    plan = _rank_plan(facts, least, host, Share(Split.PIPELINE, range(own, own + 1)))
    layer = _layer_bytes(facts, request)[own]
    return min(
        limit.bytes - (plan.need.counted_by(limit) - layer)
        for limit in plan.limits
        if limit.covers is not Covers.BUFFER
    )


def _way(
    facts: ModelFacts, request: PlanRequest, hosts: Sequence[GroupHost], shares: Sequence[Share]
) -> Way:
    split = shares[0].split
    ranks = _planned(facts, request, hosts, shares)
    if all(not rank.plan.refused for rank in ranks):
        ranks = _planned(facts, _common(request, [r.plan.settings for r in ranks]), hosts, shares)
    refused = next((rank for rank in ranks if rank.plan.refused), None)
    obstacle = _shortage(refused) if refused else ""
    links = [host.link for host in hosts if host.link is not None]
    speed = None
    if links and not obstacle:
        hidden = facts.shape.hidden_size * facts.itemsize(request.dtype)
        traffic = Traffic(hidden, len(facts.layers), len(hosts), slowest(links))
        speeds = [rank.plan.speed for rank in ranks]
        speed = group_speed(speeds, split, ranks[0].plan.settings, traffic)
    return Way(split, len(hosts), ranks, speed, obstacle)


def _planned(
    facts: ModelFacts, request: PlanRequest, hosts: Sequence[GroupHost], shares: Sequence[Share]
) -> tuple[GroupRank, ...]:
    return tuple(
        GroupRank(host, share, _rank_plan(facts, request, host, share))
        for host, share in zip(hosts, shares, strict=True)
    )


def _rank_plan(facts: ModelFacts, request: PlanRequest, host: GroupHost, share: Share) -> Plan:
    """The operator's budget is the leader's own: other hosts have their limits."""
    if host.link is not None:
        request = replace(request, budget_bytes=None)
    return make_plan(share_facts(facts, share), request, host.machine)


def _shortage(rank: GroupRank) -> str:
    plan = rank.plan
    return (
        f"{rank.host.name} needs {gigabytes(plan.needed_bytes)}, "
        f"{gigabytes(plan.available_bytes)} available ({plan.binding.name})"
    )


def _common(request: PlanRequest, chosen: Sequence[Settings]) -> PlanRequest:
    """The ranks step together: the least of what each could do, compressed if one has to."""
    return replace(
        request,
        kv=max(chosen, key=lambda settings: settings.kv.turbo).kv.value,
        context=min(settings.context for settings in chosen),
        parallel=min(settings.parallel for settings in chosen),
        prefill_chunk=min(settings.prefill_chunk for settings in chosen),
    )
