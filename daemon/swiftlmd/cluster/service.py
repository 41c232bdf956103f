"""The Cluster service of admin.proto: the hosts of a group, and what a model would take of them.

Faults travel inside the reply, as in the Admin service beside it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

from swiftlm_engine.brain.facts import ModelFacts, ModelFilesError, read_model
from swiftlm_engine.brain.plan import (
    BadPlanRequest,
    GroupHost,
    MachineLimits,
    best_way,
    group_report,
    make_group_plan,
)
from swiftlm_proto import messages as m
from swiftlmd.admin.load_options import options_over
from swiftlmd.cluster.pulling import Errand, errands, run
from swiftlmd.cluster.wire import check_message, host_message
from swiftlmd.config.live import Changes, LiveConfiguration
from swiftlmd.config.load import ConfigError
from swiftlmd.engines.group_secret import keep_secret
from swiftlmd.faults import Kind, ModelNotFound, ServiceError
from swiftlmd.hosts.checks import HostCheck
from swiftlmd.hosts.registry import Host, Hosts, machines
from swiftlmd.hosts.survey import Survey
from swiftlmd.planning.planner import asked_split, plan_request
from swiftlmd.residency.residency import Residency
from swiftlmd.store import ModelStore, StoredModel


class ClusterService(m.ClusterBase):
    """`named` resolves a model's name as every other verb does."""

    def __init__(
        self,
        *,
        configuration: LiveConfiguration,
        store: ModelStore,
        named: Callable[[str], Awaitable[str]],
        residency: Residency,
        survey: Survey,
        took_over: Callable[[Changes], None],
    ) -> None:
        self._configuration = configuration
        self._hosts = Hosts(configuration)
        self._changing = asyncio.Lock()  # guards read, change and write of `[cluster]`
        self._store = store
        self._named = named
        self._residency = residency
        self._examiner = survey.examiner
        self._survey = survey
        self._took_over = took_over

    async def list(self, message: m.ListHostsRequest) -> m.ListHostsReply:
        return m.ListHostsReply(
            hosts=[host_message(host) for host in self._hosts.listed()],
            address=self._configuration.settings.cluster_address,
            secret_path=str(self._examiner.secret_file)
            if self._examiner.secret_file.exists()
            else "",
        )

    async def add(self, message: m.AddHostRequest) -> m.AddHostReply:
        try:
            async with self._changing:
                host = self._hosts.proposed(message.name, message.agent)
                await asyncio.to_thread(keep_secret, self._examiner.secret_file)
                check = await asyncio.to_thread(self._examiner.examine, host, {})
                if not check.usable:
                    return m.AddHostReply(check=check_message(check))
                changes = await asyncio.to_thread(self._hosts.add, host, _address(check))
        except (ServiceError, ConfigError, OSError) as error:
            return m.AddHostReply(fault=_fault(error))
        self._took_over(changes)
        return m.AddHostReply(check=check_message(check))

    async def remove(self, message: m.RemoveHostRequest) -> m.RemoveHostReply:
        try:
            async with self._changing:
                changes = await asyncio.to_thread(self._hosts.remove, message.name)
        except (ServiceError, ConfigError) as error:
            return m.RemoveHostReply(fault=_fault(error))
        self._took_over(changes)
        return m.RemoveHostReply()

    async def check(self, message: m.CheckHostsRequest) -> m.CheckHostsReply:
        try:
            models = await self._fingerprints(message.model)
        except ServiceError as error:
            return m.CheckHostsReply(fault=error.to_fault())
        checks = await self._examine(self._hosts.listed(), models)
        return m.CheckHostsReply(checks=[check_message(check) for check in checks])

    async def plan(self, message: m.PlanGroupRequest) -> m.PlanGroupReply:
        try:
            name = await self._named(message.model)
            facts = await self._facts(name)
            settings = options_over(self._configuration.settings.for_model(name), message.options)
            limits = await self._limits(name)
            checks = await self._examine(machines(self._hosts.listed()), {name: facts.fingerprint})
            hosts = [host for check in checks if (host := _group_host(check, limits, name))]
            plan = await asyncio.to_thread(
                make_group_plan, facts, plan_request(settings, limits), hosts
            )
        except BadPlanRequest as error:
            return m.PlanGroupReply(fault=m.Fault(kind=Kind.INVALID, message=str(error)))
        except ServiceError as error:
            return m.PlanGroupReply(fault=error.to_fault())
        return m.PlanGroupReply(
            plan=json.dumps(
                {"model": name, "spread": settings.engine_cluster, **group_report(plan)}
            ),
            left_out=[check_message(check) for check in checks if check.problems],
        )

    async def pull(self, message: m.PullGroupRequest) -> AsyncIterator[m.OperationEvent]:
        try:
            asked = await self._errands(message.model)
            async with aclosing(run(asked, self._examiner.secret_file)) as events:
                async for event in events:
                    yield event
        except BadPlanRequest as error:
            yield m.OperationEvent(fault=m.Fault(kind=Kind.INVALID, message=str(error)))
        except ServiceError as error:
            yield m.OperationEvent(fault=error.to_fault())

    async def _errands(self, model: str) -> Sequence[Errand]:
        """By the plan of a load over all hosts, as if none of them had any file yet."""
        stored = await self._stored(await self._named(model))
        facts, hosts = await _read(stored.path), self._hosts.listed()
        if len(hosts) < 2:
            message = "this machine is alone in its group; `swiftlmctl cluster add NAME` first"
            raise ServiceError(Kind.INVALID, message)
        settings = self._configuration.settings.for_model(stored.name)
        limits = await self._limits(stored.name)
        found = await asyncio.to_thread(self._survey.hosts, settings, stored.name, "", limits)
        request, split = plan_request(settings, limits), asked_split(settings)
        way = await asyncio.to_thread(best_way, facts, request, found, split)
        if not way.fits:
            cannot = "does not fit" if way.ranks else "cannot be split"
            message = f"model '{stored.name}' {cannot} over {len(hosts)} hosts: {way.obstacle}"
            raise ServiceError(Kind.UNSUPPORTED, message)
        return errands(stored, facts.fingerprint, hosts, way)

    async def _examine(
        self, hosts: Sequence[Host], models: Mapping[str, str]
    ) -> Sequence[HostCheck]:
        look = (asyncio.to_thread(self._examiner.examine, host, models) for host in hosts)
        return await asyncio.gather(*look)

    async def _fingerprints(self, model: str) -> dict[str, str]:
        """Of the model asked for, or of those that the configuration spreads and that are here."""
        if model:
            name = await self._named(model)
            return {name: (await self._facts(name)).fingerprint}
        tables = self._configuration.settings.model
        spread = {name for name, table in tables.items() if table.get("cluster")}
        stored = [found for found in await self._store.list() if found.name in spread]
        return {found.name: (await _read(found.path)).fingerprint for found in stored}

    async def _limits(self, name: str) -> MachineLimits:
        """This machine's, for a model that is to be loaded beside those that are."""
        held = self._residency.held_bytes
        return await asyncio.to_thread(
            self._examiner.machine.limits,
            committed_bytes=held(besides=name),
            returning_bytes=held(only=name),
        )

    async def _facts(self, name: str) -> ModelFacts:
        return await _read((await self._stored(name)).path)

    async def _stored(self, name: str) -> StoredModel:
        stored = await self._store.find(name)
        if stored is None:
            raise ModelNotFound(name, [model.name for model in await self._store.list()])
        return stored


async def _read(folder: Path) -> ModelFacts:
    try:
        return await asyncio.to_thread(read_model, folder)
    except ModelFilesError as error:
        raise ServiceError(Kind.MODEL_BROKEN, str(error)) from error


def _address(check: HostCheck) -> str:
    """This machine's, as the host reaches it."""
    return check.report.visitor if check.report else ""


def _group_host(check: HostCheck, own: MachineLimits, model: str) -> GroupHost | None:
    if check.host.here:
        return GroupHost("this machine", own)
    if not check.usable or check.report is None or check.link is None:
        return None
    layers = check.layers.get(model)
    return GroupHost(check.host.name, check.report.machine, check.link.speed, layers)


def _fault(error: ServiceError | ConfigError | OSError) -> m.Fault:
    if isinstance(error, ServiceError):
        return error.to_fault()
    return m.Fault(kind=Kind.INVALID, message=str(error))
