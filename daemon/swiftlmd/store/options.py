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
    env = {**environ, **_overrides(settings), **_cache(settings, environ)}
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
        "HTTP_PROXY": settings.hub_http_proxy,
        "HTTPS_PROXY": settings.hub_https_proxy,
        "NO_PROXY": settings.hub_no_proxy,
        "SSL_CERT_FILE": settings.hub_ca_bundle,
    }
    return {name: value for name, value in pairs.items() if value}


def _cache(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The folder for models. HF_HOME would move the login as well, which is where it always was,
    unless somebody logged in there."""
    if not settings.hub_home:
        return {}
    home = Path(settings.hub_home).expanduser()
    named = [name for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE") if environ.get(name)]
    found = {} if named else {"HF_HUB_CACHE": str(home / "hub")}
    if (home / "token").is_file() and not environ.get("HF_TOKEN_PATH"):
        found["HF_TOKEN_PATH"] = str(home / "token")
    return found
