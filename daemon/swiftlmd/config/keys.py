"""Named API keys: made here, shown once, kept as hashes in `http.keys` of the configuration."""

from __future__ import annotations

import json
import secrets

from swiftlmd.config.http import is_loopback
from swiftlmd.config.key_hash import key_hash
from swiftlmd.config.live import Changes, LiveConfiguration
from swiftlmd.faults import Kind, ServiceError

_MAX_NAME = 40


class Keys:
    """Blocking: each change writes config.toml. One owner calls it, one call at a time."""

    def __init__(self, configuration: LiveConfiguration) -> None:
        self._configuration = configuration

    @property
    def names(self) -> list[str]:
        return sorted(self._configuration.settings.http_keys)

    @property
    def num_unnamed(self) -> int:
        return len(self._configuration.settings.http_api_keys)

    def add(
        self, name: str, *, is_admin: bool = False, expires_at: int = 0
    ) -> tuple[str, str, Changes]:
        """The name it got, the key, and what changed; a name in use gets a number."""
        if not name or len(name) > _MAX_NAME or not name.isprintable():
            raise ServiceError(
                Kind.INVALID, f"a key's name has 1 to {_MAX_NAME} characters", param="name"
            )
        given, number = name, 2
        while given in self._configuration.settings.http_keys:
            given, number = f"{name} {number}", number + 1
        key = f"sk-{secrets.token_urlsafe(32)}"
        text = key_hash(key) + (";admin" if is_admin else "")
        text += f";until={expires_at}" if expires_at else ""
        kept = {**self._configuration.settings.http_keys, given: text}
        return given, key, self._configuration.set("http.keys", json.dumps(kept))

    def remove(self, name: str) -> Changes:
        """Raises ServiceError for an unknown name, and for the last key of an open door."""
        settings = self._configuration.settings
        if name not in settings.http_keys:
            raise ServiceError(Kind.INVALID, f"there is no key named '{name}'", param="name")
        kept = {key: value for key, value in settings.http_keys.items() if key != name}
        if not kept and not settings.http_api_keys and not is_loopback(settings.http_host):
            raise ServiceError(
                Kind.INVALID,
                "this is the last key, and other machines can reach this service; "
                "turn access from the network off first (http.host = 127.0.0.1)",
            )
        return self._configuration.set("http.keys", json.dumps(kept))
