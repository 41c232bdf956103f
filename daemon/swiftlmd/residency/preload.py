"""Models that are loaded when the daemon starts; a failed one is named until it is loaded."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from swiftlmd.faults import ServiceError
from swiftlmd.residency.residency import Residency

log = logging.getLogger(__name__)


class Preload:
    """`named` finds the model that a name means; it raises ServiceError for an unknown one."""

    def __init__(self, residency: Residency, named: Callable[[str], Awaitable[str]]) -> None:
        self._residency = residency
        self._named = named
        self._failed: dict[str, str] = {}  # by name: why it was not loaded

    async def run(self, names: Iterable[str]) -> None:
        for name in dict.fromkeys(names):
            try:
                name = await self._named(name)  # an alias means the model behind it
                self._failed.pop(name, None)
                async for _ in self._residency.load(name):
                    pass
            except ServiceError as error:
                self._failed[name] = str(error)
                log.error("preload failed model=%s: %s", name, error)

    def warnings(self) -> list[str]:
        """Forgets what has been loaded since."""
        for resident in self._residency.residents:
            if resident.usable:
                self._failed.pop(resident.name, None)
        return [f"'{name}' was not loaded at start: {why}" for name, why in self._failed.items()]
