"""What only a Mac can confirm: the one list behind `docs/mac-checklist.md` and `doctor`.

Everything here has so far been run against fakes on Linux. `python -m swiftlmctl.doctor.mac_checks`
prints the page.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MacCheck:
    topic: str
    expect: str
    how: str


CHECKS: tuple[MacCheck, ...] = (
    MacCheck(
        "limits of the Metal device",
        "`Metal limits` passes: plans use the working set that MLX reports",
        "swiftlmctl doctor --mac",
    ),
    MacCheck(
        "MLX built for this macOS",
        "`MLX build` passes; on an M5 with macOS 26.2 or later it is the macosx_26 wheel",
        "swiftlmctl doctor --mac",
    ),
    MacCheck(
        "an hour under a yellow light",
        "slots as planned or back within minutes; one `memory soft` line in the log",
        "swiftlmctl load a model of 80 % of the budget; memory_pressure -S -l warn; swiftlmctl mem",
    ),
    MacCheck(
        "a model on an exFAT disk",
        "it loads and answers beside its ._ files",
        "swiftlmctl import /Volumes/DISK/MODEL; swiftlmctl run hello",
    ),
    MacCheck(
        "the local network from the service",
        "after the question of macOS, `cluster check` names no problem; before, it names the pane",
        "swiftlmctl cluster add NAME ADDRESS; swiftlmctl cluster check",
    ),
    MacCheck(
        "Metal kernels of compressed KV",
        "the load says the error of each layer; `compressed KV` passes; decode at 32k beats fp16",
        "swiftlmctl load NAME --kv turbo; swiftlmctl doctor --mac; swiftlmctl bench context",
    ),
    MacCheck(
        "errors of Metal kernels are seen",
        "`Metal kernels` passes: a kernel computes, and one with an error in it is refused",
        "swiftlmctl doctor --mac",
    ),
    MacCheck(
        "no stall in the first long prompt",
        "with --kv turbo, prefill of 8k tokens is no slower the first time than the second",
        "swiftlmctl run -v with a long file, twice",
    ),
    MacCheck(
        "experts from the SSD",
        "`streaming` passes; bytes read as predicted; the disk below 8 GB/s, also after a pull",
        "swiftlmctl pull a model larger than memory; plan it, run it, then: doctor --mac",
    ),
    MacCheck(
        "memory comes back",
        "`footprint` of the daemon under 200 MB a minute after an unload",
        "swiftlmctl unload NAME; footprint swiftlmd",
    ),
    MacCheck(
        "100k tokens with the screen on",
        "prefill ends without a GPU fault in the log",
        "swiftlmctl bench context --contexts 100000",
    ),
    MacCheck(
        "every kind of Python",
        "install ends with an answer with the Python of uv, of brew and of python.org",
        "sh install.sh --python PATH, three times",
    ),
    MacCheck(
        "Time Machine passes over models",
        "`[Excluded]` for models and versions",
        "tmutil isexcluded ~/Library/Application*/swiftlm/models",
    ),
    MacCheck(
        "install on a fresh account",
        "`sh install.sh` ends with a real completion; a second run says that nothing changed",
        "sh install.sh && sh install.sh",
    ),
    MacCheck(
        "install as a tool",
        "`swiftlmctl setup` ends with a real completion, with uv and with pipx; `uninstall` "
        "leaves models and configuration",
        "uv tool install swiftlm && swiftlmctl setup && swiftlmctl uninstall",
    ),
    MacCheck(
        "install in one line",
        "the archive's hash is checked, and the installation ends with a real completion",
        "curl -LsSf URL/install-swiftlm.sh | sh",
    ),
    MacCheck(
        "the job as launchd reads it",
        "plutil says OK",
        "plutil -lint ~/Library/LaunchAgents/io.github.swiftlm.swiftlmd.plist",
    ),
    MacCheck(
        "`launchctl print` keeps its shape",
        "`state`, `pid`, `runs`, `last exit code`, `exit timeout` one tab deep",
        "launchctl print gui/$(id -u)/io.github.swiftlm.swiftlmd",
    ),
    MacCheck(
        "the exit timeout is not clamped below ours",
        "`exit timeout = 45`",
        "swiftlmctl service status --json",
    ),
    MacCheck(
        "Metal in the screen session and over SSH",
        "doctor's `device` passes in gui/UID and in user/UID",
        "swiftlmctl doctor; then the same over SSH without a screen session",
    ),
    MacCheck(
        "stop holds until the next login",
        "stopped after `swiftlmctl stop`, running again after logging out and in",
        "swiftlmctl stop; log out; log in; swiftlmctl status",
    ),
    MacCheck(
        "SSH first, screen later",
        "one daemon only; the second one leaves with 0 and says who won",
        "start over SSH, log in at the screen, swiftlmctl status, swiftlmctl logs -n 20",
    ),
    MacCheck(
        "bootout settles",
        "uninstall and install in one line, without error 5",
        "swiftlmctl service uninstall && swiftlmctl service install",
    ),
    MacCheck(
        "disabled and enabled again",
        "`disable` survives a new login, `start` mends it",
        "swiftlmctl service disable; log out and in; swiftlmctl start",
    ),
    MacCheck(
        "socket activation",
        "launchd makes ctl.sock with mode 0600 and makes it again at login",
        "swiftlmctl service install --socket-activation; ls -l the socket",
    ),
    MacCheck(
        "Background Items",
        "one notice at installation; switching it off in Settings is respected and doctor says so",
        "System Settings, General, Login Items",
    ),
    MacCheck(
        "privacy of folders",
        "a model folder on an external disk or in ~/Documents gives a readable refusal that "
        "names the interpreter",
        "swiftlmctl load /Volumes/DISK/MODEL",
    ),
    MacCheck(
        "speed as a service",
        "decode through launchd within 3 % of `swiftlmd serve` in a terminal",
        "swiftlmctl run -v 'count to 100' in both",
    ),
    MacCheck(
        "sleep and wake",
        "`sleep clock` passes; the first request after a night's sleep is answered; the log names "
        "the wake",
        "close the lid for an hour; swiftlmctl run hello",
    ),
    MacCheck(
        "an idle service lets the chip sleep",
        "IDLEW grows by at most 30 in 30 s with an idle model, daemon and engine together",
        "top -l 2 -s 30 -stats pid,command,idlew | grep -i python",
    ),
    MacCheck(
        "no sleep while generating",
        "with the option on, `pmset -g assertions` names swiftlmd only while it generates",
        "swiftlmctl config set power.prevent_sleep true; pmset -g assertions",
    ),
    MacCheck(
        "pressure and heat",
        "status shows both; `memory_pressure -S -l warn` turns pressure to warn",
        "swiftlmctl status --watch",
    ),
    MacCheck(
        "footprint as Activity Monitor shows it",
        "the two numbers agree within 2 %",
        "swiftlmctl status; Activity Monitor, Memory",
    ),
    MacCheck(
        "the kernel for rows that decode together",
        "after several requests at once the log has no line `rows are attended to one by one`",
        "send four chats at once; swiftlmctl logs -n 200",
    ),
    MacCheck(
        "one model over two Macs",
        "check names no problem; the model answers; its speed lies in the plan's prediction",
        "swiftlmd join --listen ADDRESS there; swiftlmctl cluster add, check, plan, load here",
    ),
    MacCheck(
        "HTTPS for the local network",
        "a phone that trusts the authority opens and installs the page without a warning",
        "swiftlmctl config set http.tls auto; Settings, Network, Show a code",
    ),
    MacCheck(
        "a restart with FileVault",
        "after a login at the screen the service answers; before it, nothing does",
        "sudo shutdown -r now; log in; swiftlmctl status",
    ),
    MacCheck(
        "two users with the service",
        "the second user's `start` names the port in use, and works with another port",
        "swiftlmctl start as both; swiftlmctl config set http.port N",
    ),
    MacCheck(
        "upgrade while running",
        "the new version answers; a broken one is rolled back with code 70",
        "sh install.sh of a newer checkout",
    ),
    MacCheck(
        "uninstall",
        "nothing left but what it names",
        "sh install.sh --uninstall; find ~/Library -name '*swiftlm*'",
    ),
)


def page() -> str:
    """`docs/mac-checklist.md`."""
    lines = [
        "# What only a Mac can confirm",
        "",
        "CI runs on Linux, against fakes of launchctl and systemctl. These points wait for a Mac,",
        "the costliest first. `swiftlmctl doctor --mac` runs what a program can and prints the",
        "rest; with `--json` it writes a file that `swiftlmctl doctor --replay FILE` judges",
        "on any machine.",
        "Generated by `python -m swiftlmctl.doctor.mac_checks`; do not edit.",
        "",
        "| | topic | expected | how |",
        "|---|---|---|---|",
    ]
    lines += [f"| ☐ | {c.topic} | {c.expect} | `{c.how}` |" for c in CHECKS]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
