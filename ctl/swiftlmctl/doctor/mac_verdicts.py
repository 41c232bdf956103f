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
_FOREIGN = ("exfat", "msdos", "ntfs")
_REMOTE = ("smbfs", "nfs", "webdav", "afpfs")
_FASTEST_SSD_GB_S = 16.0
_CLOCK_OFF_S, _BOOT_OFF_S = 1.0, 300.0  # the date may have been set since the start


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


def _kernels(record: MacRecord) -> Iterator[m.DoctorCheck]:
    """A kernel of ours gives what it should, and one with an error is refused."""
    found = record.mlx.get("kernel")
    if not found:
        return
    if found.get("ended"):
        reason = "MLX ended while it built a Metal kernel"
        yield _check("Metal kernels", "fail", reason, "swiftlmctl doctor --mac --json, in a report")
    elif not found.get("right"):
        reason = f"a kernel that doubles numbers does not: {found.get('error', 'wrong numbers')}"
        yield _check("Metal kernels", "fail", reason, "swiftlmctl doctor --mac --json, in a report")
    elif found.get("planted") != "caught":
        reason = "a kernel with an error in it was not refused: faults of kernels go unseen"
        yield _check("Metal kernels", "fail", reason, "swiftlmctl doctor --mac --json, in a report")
    else:
        yield _check("Metal kernels", "pass", "ours compute, and a planted error is refused")


def _streaming(record: MacRecord) -> Iterator[m.DoctorCheck]:
    """What engines counted of reading experts and layers from disk."""
    for model in record.models:
        text = str((model.get("stats") or {}).get("stream_counters") or "")
        if not text:
            continue
        found = json.loads(text)
        speed, name = float(found.get("gb_per_s") or 0), model["model"]
        words = f"{name}: {found.get('bytes', 0) / 1e9:.1f} GB from disk at {speed:.1f} GB/s"
        if found.get("hit_rate"):
            words += f", {found['hit_rate']:.0%} of the experts were in memory"
        if found.get("read_errors"):
            words += f", {found['read_errors']} reads failed"
            yield _check("streaming", "fail", words, f"swiftlmctl models repair {name}")
        elif not found.get("reads"):
            reason = f"{name} was loaded to be streamed, and nothing was read yet"
            yield _check("streaming", "warn", reason, f"swiftlmctl run -m {name} hello")
        elif speed > _FASTEST_SSD_GB_S or found.get("nocache") is False:
            words += ": that is the page cache of macOS, which takes memory from the model"
            yield _check("streaming", "warn", words, "swiftlmctl doctor --mac --json, in a report")
        elif found.get("degraded"):
            words += f"; {'; '.join(map(str, found.get('problems') or []))}"
            yield _check("streaming", "warn", words, f"swiftlmctl plan {name} -v")
        else:
            yield _check("streaming", "pass", words)


def _clock(record: MacRecord) -> Iterator[m.DoctorCheck]:
    """The clock that runs on while the Mac sleeps, by which waking is noticed."""
    clocks = record.clocks
    if not clocks:
        return
    slept = clocks["with_sleep"] - clocks["awake"]
    boot = re.search(r"sec = (\d+)", sysctl(record, "kern.boottime"))
    off = clocks["date"] - int(boot[1]) - clocks["with_sleep"] if boot else 0.0
    if slept < -_CLOCK_OFF_S or off > _BOOT_OFF_S:
        missing = max(-slept, off)
        reason = f"{missing:.0f} s are missing in the clock that runs on in sleep: waking is missed"
        yield _check("sleep clock", "fail", reason, "swiftlmctl doctor --mac --json, in a report")
    else:
        yield _check("sleep clock", "pass", f"slept {max(0.0, slept) / 3600:.1f} h since the start")


def _filevault(record: MacRecord) -> Iterator[m.DoctorCheck]:
    if "FileVault is On" in record.commands.get("filevault", ""):
        words = "on: after a restart the service answers once you have logged in at the screen"
        yield _check("FileVault", "pass", words)


def _volumes(record: MacRecord) -> Iterator[m.DoctorCheck]:
    found = re.findall(r"^\S+ on (/Volumes/.+?) \((\w+)", record.commands.get("mount", ""), re.M)
    foreign = [f"{place} ({kind})" for place, kind in found if kind in _FOREIGN]
    remote = [f"{place} ({kind})" for place, kind in found if kind in _REMOTE]
    if foreign:
        words = f"{', '.join(foreign)}: models there load, slower than from APFS"
        yield _check("volumes", "pass", words)
    if remote:
        words = (
            f"{', '.join(remote)}: models there load at the speed of the network; keep one that "
            "is larger than memory on a disk of this Mac"
        )
        yield _check("network volumes", "pass", words)


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
    _metal, _wheel, _system, _kernels, _pressure, _job, _models, _streaming, _footprint, _clock,
    _filevault, _volumes, _daemon
)  # fmt: skip
