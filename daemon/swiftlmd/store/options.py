"""What the store must be told; the daemon takes it from its settings, tests give it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swiftlmd.config.settings import Settings
from swiftlmd.store import cache_dirs

ENDPOINT = "https://huggingface.co"
_TRUE = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """`environ` is what child processes start with; it also holds proxies and the hub's token."""

    environ: Mapping[str, str]
    home: Path
    hub_cache: Path
    offline: bool = False  # never open a connection, neither to the hub nor to PyPI
    folders: tuple[Path, ...] = ()  # the user's, each a model or a folder of models
    scale_dtype: str = ""  # of converted models; empty = by this machine's device
    parallel: int = 4  # files at once
    patience_s: float = 120.0  # without a new byte, before a pull is given up
    spare_bytes: int = 1 << 30  # stay free on the disk
    endpoint: str = ENDPOINT

    @property
    def hub_offline(self) -> bool:
        """Also by the variable that the hub's own client obeys."""
        return self.offline or self.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE


def from_settings(settings: Settings, environ: Mapping[str, str], home: Path) -> StoreOptions:
    """The daemon's settings laid over its environment."""
    env = {**environ, **_overrides(settings)}
    return StoreOptions(
        environ=env,
        home=home,
        hub_cache=cache_dirs.hub_cache(env, home),
        offline=settings.hub_offline,
        folders=tuple(Path(f).expanduser() for f in settings.models_folders),
        endpoint=env.get("HF_ENDPOINT") or ENDPOINT,
    )


def _overrides(settings: Settings) -> dict[str, str]:
    pairs = {
        "HF_ENDPOINT": settings.hub_endpoint,
        "HF_HOME": settings.hub_home,
        "HTTP_PROXY": settings.hub_http_proxy,
        "HTTPS_PROXY": settings.hub_https_proxy,
        "NO_PROXY": settings.hub_no_proxy,
        "SSL_CERT_FILE": settings.hub_ca_bundle,
    }
    return {name: value for name, value in pairs.items() if value}
