"""What a record of a Mac means: pass, or what to do. Ordered by what costs most.

Runs on any machine, over a live record or over a file from another Mac.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

from swiftlm_proto import messages as m
from swiftlmctl.doctor.mac_record import MacRecord

_OLDEST = (14, 0)
_NAX_SYSTEM = (26, 2)  # the first whose Metal runs the kernels of the macosx_26 wheel
_EXIT_TIMEOUT_S = 45
_FOOTPRINTS_AGREE = 0.05
_MUCH_SWAP = 2 * 10**9
_SLOW_PRODUCT_S = 20.0
_KLD = 0.05
_FOREIGN = ("exfat", "msdos", "ntfs", "smbfs", "nfs", "webdav")


def verdicts(record: MacRecord) -> list[m.DoctorCheck]:
    """Each says nothing where it has nothing to go by."""
    return [check for examine in _EXAMINED for check in examine(record)]


def macos_version(record: MacRecord) -> tuple[int, ...]:
    found = re.search(r"ProductVersion:\s*([\d.]+)", record.commands.get("sw_vers", ""))
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def sysctl(record: MacRecord, name: str) -> str:
    found = re.search(rf"^{re.escape(name)}: (.*)$", record.commands.get("sysctl", ""), re.M)
    return found[1].strip() if found else ""


def vm_stat(record: MacRecord) -> dict[str, int]:
    """Pages by the words that `vm_stat` has for them, and the size of one."""
    text = record.commands.get("vm_stat", "")
    found = {
        name.strip('"'): int(pages) for name, pages in re.findall(r"^(.+?):\s+(\d+)\.$", text, re.M)
    }
    if size := re.search(r"page size of (\d+) bytes", text):
        found["page size"] = int(size[1])
    return found


def _metal(record: MacRecord) -> Iterator[m.DoctorCheck]:
    mlx = record.mlx.get("max_recommended_working_set_size")
    if not mlx:
        reason = f"MLX sees no Metal device: {record.mlx.get('error', 'no working set')}"
        yield _check(
            "Metal device", "fail", reason, "log in at the screen, then: swiftlmctl restart"
        )
        return
    product = float(record.mlx.get("first_product_s", 0))
    words = f"{record.mlx.get('device_name')}, {mlx / 1e9:.1f} GB, first product {product:.1f} s"
    yield _check("Metal device", "warn" if product > _SLOW_PRODUCT_S else "pass", words)
    if not record.machine:
        return
    used = int(record.machine.get("working_set_bytes") or 0)
    if used == mlx:
        yield _check("Metal limits", "pass", "plans use MLX's working set")
        return
    reason = f"plans use {used / 1e9:.1f} GB, MLX reports {mlx / 1e9:.1f} GB"
    yield _check("Metal limits", "fail", reason, "swiftlmctl restart")


def _wheel(record: MacRecord) -> Iterator[m.DoctorCheck]:
    tags = [int(tag) for tag in re.findall(r"^Tag: .*-macosx_(\d+)_\d+_arm64", record.wheel, re.M)]
    version = macos_version(record)
    if not tags or not version:
        return
    built, matrix_units = max(tags), bool(re.match(r"Apple M(?:[5-9]|\d\d)", _chip(record)))
    words = f"mlx-metal for macOS {built} on macOS {'.'.join(map(str, version))}, {_chip(record)}"
    if built >= 26 and version < _NAX_SYSTEM:
        reason = f"{words}: this build needs macOS 26.2, and Metal may refuse its kernels"
        status = "fail" if matrix_units else "warn"
        yield _check("MLX build", status, reason, "update macOS in System Settings, General")
    elif built < 26 <= version[0]:
        reason = f"{words}: an older build than this macOS takes"
        if matrix_units:
            reason += ", without the matrix units: prompts are read about three times slower"
        yield _check(
            "MLX build", "fail" if matrix_units else "warn", reason, "sh install.sh --python PATH"
        )
    else:
        yield _check("MLX build", "pass", words)


def _chip(record: MacRecord) -> str:
    return str(record.mlx.get("device_name") or sysctl(record, "machdep.cpu.brand_string"))


def _system(record: MacRecord) -> Iterator[m.DoctorCheck]:
    version = macos_version(record)
    if version and version < _OLDEST:
        reason = f"macOS {'.'.join(map(str, version))}; MLX needs 14 or later"
        yield _check("macOS", "fail", reason, "update macOS in System Settings, General")
    translated = sysctl(record, "sysctl.proc_translated") == "1"
    if translated or record.python.get("machine") not in ("arm64", "", None):
        reason = f"Python runs as {record.python.get('machine')}, translated by Rosetta: no Metal"
        yield _check("Python", "fail", reason, "arch -arm64 sh install.sh")
    else:
        yield _check("Python", "pass", f"{record.python.get('version')}, arm64")


def _pressure(record: MacRecord) -> Iterator[m.DoctorCheck]:
    level = sysctl(record, "kern.memorystatus_vm_pressure_level")
    if not level:
        return
    name = {"1": "normal", "2": "warning", "4": "critical"}.get(level, level)
    used = re.search(r"used = ([\d.]+)M", sysctl(record, "vm.swapusage"))
    swap = float(used[1]) * 2**20 if used else 0.0
    words = (
        f"pressure {name}, swap {swap / 1e9:.1f} GB, {_free(record) / 1e9:.1f} GB free or cached"
    )
    if level == "4":
        yield _check("memory pressure", "fail", words, "swiftlmctl unload NAME")
    elif level != "1" or swap > _MUCH_SWAP:
        yield _check("memory pressure", "warn", words, "swiftlmctl mem; close what holds most")
    else:
        yield _check("memory pressure", "pass", words)


def _free(record: MacRecord) -> int:
    pages = vm_stat(record)
    names = ("Pages free", "File-backed pages", "Pages purgeable")
    return sum(pages.get(name, 0) for name in names) * pages.get("page size", 0)


def _job(record: MacRecord) -> Iterator[m.DoctorCheck]:
    text, again = record.commands.get("launchctl", ""), "swiftlmctl service install"
    if not text:
        yield _check("launchd", "fail", "launchd does not know the job", again)
        return
    values = dict(re.findall(r"^\t([a-z ]+) = (.*)$", text, re.M))
    timeout = values.get("exit timeout", "0")
    words = f"{values.get('state')}, runs {values.get('runs')}, exit timeout {timeout}"
    if values.get("state") != "running":
        words += f", last exit {values.get('last exit code')}"
        yield _check("launchd", "fail", words, "swiftlmctl start")
    elif "interactive" not in values.get("spawn type", "interactive"):
        reason = f"{words}, spawn type {values['spawn type']}: decoding is slowed several times"
        yield _check("launchd", "fail", reason, again)
    elif int(timeout) < _EXIT_TIMEOUT_S:
        yield _check("launchd", "warn", f"{words}: {_EXIT_TIMEOUT_S} s were asked for", again)
    else:
        yield _check("launchd", "pass", words)


def _footprint(record: MacRecord) -> Iterator[m.DoctorCheck]:
    said = re.search(r"phys_footprint: (\d+)", record.commands.get("footprint", ""))
    ours = next((model.get("footprint_bytes") for model in record.models), None)
    if not said or not ours:
        return
    apart = abs(int(said[1]) - int(ours)) / int(said[1])
    words = f"`footprint` says {int(said[1]) / 1e9:.2f} GB, status {int(ours) / 1e9:.2f} GB"
    yield _check("footprint", "pass" if apart <= _FOOTPRINTS_AGREE else "fail", words)


def _models(record: MacRecord) -> Iterator[m.DoctorCheck]:
    """What loaded models say of their kernels and their disk."""
    turbo = [x for x in record.models if str(x["loaded"].get("kv", "fp16")) not in ("fp16", "")]
    if not turbo:
        reason = "no model is loaded with it, so our Metal kernels did not run"
        yield _check("compressed KV", "warn", reason, "swiftlmctl load NAME --kv turbo")
    for model in turbo:
        found = re.search(r'"kld": ([\d.e-]+)', json.dumps(model["loaded"].get("kv_report", "")))
        if found is None:
            continue
        words = f"{model['model']}: {model['loaded']['kv']}, KLD {float(found[1]):.3f}"
        yield _check("compressed KV", "pass" if float(found[1]) <= _KLD else "fail", words)
    for model in record.models:
        price, held = model.get("priced_bytes") or 0, model.get("footprint_bytes") or 0
        if price and held > 1.08 * int(price):
            words = f"{model['model']} holds {held / 1e9:.1f} GB, priced {int(price) / 1e9:.1f} GB"
            yield _check("price", "warn", words, "swiftlmctl mem --json, in a report")


def _volumes(record: MacRecord) -> Iterator[m.DoctorCheck]:
    found = re.findall(r"^\S+ on (/Volumes/.+?) \((\w+)", record.commands.get("mount", ""), re.M)
    foreign = [f"{place} ({kind})" for place, kind in found if kind in _FOREIGN]
    if foreign:
        words = f"{', '.join(foreign)}: models there load, slower than from APFS"
        yield _check("volumes", "pass", words)


def _daemon(record: MacRecord) -> Iterator[m.DoctorCheck]:
    for check in record.checks:
        if check.get("status") in ("warn", "fail"):
            yield m.DoctorCheck(
                name=str(check["name"]), status=str(check["status"]),
                reason=str(check.get("reason", "")), fix=str(check.get("fix", "")), mac_only=False,
            )  # fmt: skip


def _check(name: str, status: str, reason: str, fix: str = "") -> m.DoctorCheck:
    shown = f"`{fix}`" if fix else ""
    return m.DoctorCheck(name=name, status=status, reason=reason, fix=shown, mac_only=True)


_Examine = Callable[[MacRecord], Iterator[m.DoctorCheck]]
_EXAMINED: tuple[_Examine, ...] = (
    _metal, _wheel, _system, _pressure, _job, _models, _footprint, _volumes, _daemon
)  # fmt: skip
