"""Which model a client's name means: exact, alias, pattern, or the default rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from swiftlmd.config.settings import Settings
from swiftlmd.store import catalogue

DEFAULT = "default"
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)  # no path is one
_USUAL = Settings().models_default  # its absence is no mistake of anybody's


class ModelNames:
    """Resolves names by the current settings. `known` is what lies on disk, as last listed."""

    def __init__(
        self, settings: Callable[[], Settings], latest_used: Callable[[], str | None]
    ) -> None:
        self._settings = settings
        self._latest_used = latest_used
        self._known: frozenset[str] = frozenset()
        self._has_learned = False

    def learn(self, names: Iterable[str]) -> None:
        self._known, self._has_learned = frozenset(names), True

    def warnings(self) -> list[str]:
        """What the configuration names and is not here."""
        if not self._has_learned:
            return []
        settings = self._settings()
        found = [
            f"models.aliases: '{alias}' means '{model}', which is not here"
            for alias, model in settings.models_aliases.items()
            if model != DEFAULT and model not in self._known
        ]
        configured = settings.models_default
        if configured != _USUAL and configured not in {*self._known, *settings.models_aliases}:
            instead = self.default()
            served = f"get '{instead}'" if instead in self._known else "are refused"
            found.append(
                f"models.default: '{configured}' is not here; requests that name no model {served}"
            )
        return found

    def knows(self, name: str) -> bool:
        return name in self._known

    def is_sure(self, name: str) -> bool:
        """Whether what was listed last settles what `name` means, whatever has come since.

        A pattern, the rule for unknown names and the model that was used last give way to a model
        that lies here: other programs and copies bring models without telling."""
        name = name.strip()
        settings = self._settings()
        if name not in ("", DEFAULT):
            if name in self._known:
                return True
            name = settings.models_aliases.get(name, "")
            if name != DEFAULT:
                return name in self._known
        configured = settings.models_default
        return settings.models_aliases.get(configured, configured) in self._known

    def resolve(self, name: str) -> str:
        """Never fails: a name that means nothing is returned as it is, for the error to show."""
        name = name.strip()
        settings = self._settings()
        if name in ("", DEFAULT):
            return self.default()
        if name in self._known:
            return name
        target = self._alias(name)
        if target is None and (repo := catalogue.repo_of(name)) in self._known:
            return repo
        if target is not None:
            return self.default() if target == DEFAULT else target
        return self.default() if settings.models_unknown == "default" else name

    def to_fetch(self, name: str) -> str:
        """The hub repository of a resolved name that is not here, where such are fetched."""
        if self._settings().models_on_missing != "pull" or name in self._known:
            return ""
        return name if _REPO.fullmatch(name) else catalogue.repo_of(name)

    def default(self) -> str:
        """The configured default; where that is not here, the model that was used last."""
        configured = self._settings().models_default
        target = self._alias(configured)
        if target not in (None, DEFAULT):
            configured = str(target)
        if configured in self._known:
            return configured
        return self._latest_used() or configured

    def _alias(self, name: str) -> str | None:
        aliases = self._settings().models_aliases
        if name in aliases:
            return aliases[name]
        # The longest pattern says most.
        for pattern in sorted(aliases, key=len, reverse=True):
            if fnmatchcase(name, pattern):
                return aliases[pattern]
        return None
