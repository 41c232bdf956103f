"""The daemon's own checks, made where it runs: a shell sees other devices, folders and grants.

Each says pass, warn or fail, the reason, and the command that mends it. What can hang (a folder
that macOS guards, a device) gets a time limit.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from swiftlm_proto import messages as m
from swiftlm_proto.exit_codes import DaemonExit
from swiftlm_proto.paths import Paths
from swiftlmd.admin import local_network
from swiftlmd.admin.self_check import SelfCheck, mlx_check
from swiftlmd.config.settings import Settings
from swiftlmd.engines import blas
from swiftlmd.lifecycle.instance import address
from swiftlmd.memory.devices import parse_device_info

_FOLDER_S = 10.0
_FEW_FILES = 1024
_LITTLE_DISK = 5 * 10**9
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Doctor:
    """Everything a check looks at; nothing is changed by looking."""

    paths: Paths
    environ: Mapping[str, str]
    settings: Callable[[], Settings]
    machine: Callable[[], m.MachineStatus]
    warnings: Callable[[], list[str]]
    hub_cache: Path
    platform: str = sys.platform

    async def examine(self) -> list[m.DoctorCheck]:
        """All checks; takes seconds."""
        settings = self.settings()
        device = asyncio.create_task(asyncio.to_thread(mlx_check))
        checks = [
            self._memory(),
            *([await self._blas()] if self.platform == "linux" else []),
            *([self._thermal()] if self.platform == "darwin" else []),
            *([await asyncio.to_thread(local_network.check)] if self.platform == "darwin" else []),
            _open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
            _disk(self.paths.cache),
            _address(settings),
            self._certificates(settings),
            self._configuration(),
            await _answers("models", self.paths.models),
            await _answers("hub cache", self.hub_cache),
        ]
        for name in settings.models_folders:
            checks.append(await _answers(f"models in {name}", Path(name), wanted=True))
        computes = await device
        metal = [self._metal(computes.device_info)] if self.machine().device == "metal" else []
        return [self._device(computes), *metal, *checks]

    def _device(self, check: SelfCheck) -> m.DoctorCheck:
        if check.code is DaemonExit.STAY_DOWN:
            return _check("device", "pass", f"MLX computes: {check.detail}")
        reason = f"MLX does not compute here: {check.detail}"
        if self.platform == "darwin":
            return _check("device", "fail", f"{reason}; log in at the screen and look again")
        return _check("device", "fail", reason, "sh install.sh")

    def _metal(self, info: str) -> m.DoctorCheck:
        """The limits that plans are made with against MLX's, asked for now."""
        machine = self.machine()
        used, mlx = machine.working_set_bytes, parse_device_info(info).working_set_bytes
        if not used:
            reason = (
                "no Metal device was visible at start, so plans assume two thirds of the memory"
            )
            return _mac_check("Metal limits", "fail", reason, "swiftlmctl restart")
        words = f"{machine.device_name}, working set {used / 1e9:.1f} GB"
        if mlx is None:
            return _mac_check("Metal limits", "warn", f"{words}; MLX does not tell its own")
        if mlx != used:
            reason = f"{words}, but MLX reports {mlx / 1e9:.1f} GB (iogpu.wired_limit_mb changed?)"
            return _mac_check("Metal limits", "fail", reason, "swiftlmctl restart")
        return _mac_check("Metal limits", "pass", f"{words}, as MLX reports it")

    def _memory(self) -> m.DoctorCheck:
        machine = self.machine()
        words = (
            f"{machine.available_bytes / 1e9:.1f} of {machine.memory_bytes / 1e9:.1f} GB "
            f"available, models may hold {machine.budget_bytes / 1e9:.1f} GB, "
            f"pressure {machine.pressure or 'unknown'}"
        )
        if machine.pressure == "critical":
            return _check("memory", "fail", words, "swiftlmctl unload NAME")
        return _check("memory", "warn" if machine.pressure == "warn" else "pass", words)

    async def _blas(self) -> m.DoctorCheck:
        """Each library that is here is measured, one after the other."""
        if self.machine().device != "cpu":
            return _check("BLAS", "pass", "not needed: models run on the GPU")
        environ = {**self.environ, **self.settings().engine_environment}
        speeds = [
            await asyncio.to_thread(blas.measured, library, environ)
            for library in blas.installed(environ)
        ]
        found = blas.verdict([speed for speed in speeds if speed is not None])
        return _check("BLAS", "pass" if found.good else "warn", found.words, found.fix)

    def _thermal(self) -> m.DoctorCheck:
        level = self.machine().thermal
        status = "pass" if level in ("", "nominal", "moderate") else "warn"
        return _mac_check("heat", status, f"thermal level {level or 'not known'}")

    def _certificates(self, settings: Settings) -> m.DoctorCheck:
        names = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
        proxy = settings.hub_https_proxy or next(
            (self.environ[name] for name in names if self.environ.get(name)), ""
        )
        bundle = settings.hub_ca_bundle or self.environ.get("SSL_CERT_FILE", "")
        if bundle and not Path(bundle).is_file():
            fix = "swiftlmctl config unset hub.ca_bundle"
            return _check("downloads", "fail", f"the certificate file {bundle} is not there", fix)
        offline = "offline by configuration; " if settings.hub_offline else ""
        words = f"{offline}proxy {'set' if proxy else 'none'}, certificates {bundle or 'built in'}"
        return _check("downloads", "pass", words)

    def _configuration(self) -> m.DoctorCheck:
        warnings = self.warnings()
        if warnings:
            return _check("warnings", "warn", "; ".join(warnings))
        return _check("warnings", "pass", "none")


def _open_files(soft: int) -> m.DoctorCheck:
    if soft != resource.RLIM_INFINITY and soft < _FEW_FILES:
        reason = f"only {soft} open files allowed; many idle clients would fill that"
        return _check("open files", "warn", reason, "swiftlmctl service install")
    return _check("open files", "pass", f"{soft} allowed")


def _disk(folder: Path) -> m.DoctorCheck:
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    status = "pass" if free > _LITTLE_DISK else "warn"
    return _check("disk", status, f"{free / 1e9:.1f} GB free for caches at {place}")


def _address(settings: Settings) -> m.DoctorCheck:
    listens_at = address(settings.http_host, settings.http_port)
    if settings.http_host in _LOOPBACK:
        return _check("address", "pass", f"{listens_at}, this machine only")
    if not (settings.http_api_keys or settings.http_keys):
        reason = f"{settings.http_host} can be reached from the network, and no key is asked for"
        return _check("address", "fail", reason, "swiftlmctl config set http.host 127.0.0.1")
    return _check("address", "pass", f"{listens_at}, with keys")


async def _answers(name: str, folder: Path, *, wanted: bool = False) -> m.DoctorCheck:
    """The check of a folder; one that does not answer keeps nobody waiting. `wanted`: the
    configuration names it."""
    try:
        async with asyncio.timeout(_FOLDER_S):
            return await asyncio.to_thread(_folder, name, folder, wanted)
    except TimeoutError:
        reason = f"{folder} does not answer within {_FOLDER_S:g} s: a sleeping or absent volume"
        return _check(name, "fail", reason)


def _folder(name: str, folder: Path, wanted: bool) -> m.DoctorCheck:
    try:
        count = len(os.listdir(folder.expanduser()))
    except FileNotFoundError:
        if wanted:
            reason = f"{folder} is not there: connect its disk, or take it out of models.folders"
            return _check(name, "fail", reason, "swiftlmctl config edit")
        return _check(name, "pass", f"{folder} is not there (nothing was put into it)")
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES):
            return _check(name, "fail", f"{folder}: {error.strerror}")
        reason = f"{folder} may not be read by the service"
        real = os.path.realpath(sys.executable)
        return _check(name, "fail", f"{reason}; give Full Disk Access to {real}")
    return _check(name, "pass", f"{folder}, {count} entries")


def _check(name: str, status: str, reason: str, fix: str = "") -> m.DoctorCheck:
    return m.DoctorCheck(name=name, status=status, reason=reason, fix=f"`{fix}`" if fix else "")


def _mac_check(name: str, status: str, reason: str, fix: str = "") -> m.DoctorCheck:
    check = _check(name, status, reason, fix)
    check.mac_only = True
    return check
