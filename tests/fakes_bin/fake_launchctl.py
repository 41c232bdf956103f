"""A stateful launchctl for tests: the same verbs, codes and texts, and it really runs the job.

State lies in $FAKE_LAUNCHD_DIR:
  session.json   {"domains": ["gui", "user"], "manager": "Aqua"}: what exists for this user
  disabled.json  labels switched off, for each domain; kept over bootout, as on a Mac
  faults.json    {"bootstrap": [5, 37, 0]}: codes to answer with first, 0 = do it
  modes.json     ["no-spawn-until-kickstart", "disabled-gives-5"]
  calls.log      every call, for assertions on their order
  jobs/…         one folder for each loaded job, see supervision.py
$FAKE_LAUNCHD_SPEED divides throttle and exit timeout.
"""

from __future__ import annotations

import json
import os
import plistlib
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

try:
    from fakes_bin import supervision
except ImportError:  # run as a program: this folder itself is on the path
    import supervision

WORDS = {
    3: "No such process",
    5: "Input/output error",
    17: "File exists",
    36: "Operation now in progress",
    37: "Operation already in progress",
    112: "Could not find domain",
    119: "Service is disabled",
    125: "Domain does not support specified action",
    134: "Service cannot load in requested session",
}
SESSION_TYPE = {"gui": "Aqua", "user": "Background"}


class Refused(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def failed(verb: str, code: int) -> Refused:
    text = f"{verb} failed: {code}: {WORDS.get(code, 'Unknown error')}"
    if code == 5:
        text += "\nTry re-running the command as root for richer errors."
    return Refused(code, text)


def not_found(domain: str, label: str) -> Refused:
    kind, uid = domain.split("/")
    where = f"domain for user gui: {uid}" if kind == "gui" else f"domain for uid: {uid}"
    return Refused(113, f'Bad request.\nCould not find service "{label}" in {where}')


class Launchctl:
    """One call; the words it prints are in `out`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.root = Path(environ["FAKE_LAUNCHD_DIR"])
        self.speed = float(environ.get("FAKE_LAUNCHD_SPEED", "20"))
        self.uid = environ.get("FAKE_LAUNCHD_UID", str(os.getuid()))
        self.home = environ["HOME"]
        self.out: list[str] = []

    def call(self, words: Sequence[str]) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        with open(self.root / "calls.log", "a") as journal:
            journal.write(json.dumps(list(words)) + "\n")
        name = words[0].replace("-", "_") if words else ""
        verb = getattr(self, f"verb_{name}", None)
        if verb is None:
            return 64, "", "Unrecognized subcommand\n"
        try:
            verb(*words[1:])
        except Refused as e:
            return e.code, "", e.text + "\n"
        return 0, "".join(f"{line}\n" for line in self.out), ""

    def stored(self, name: str, default: object) -> object:
        try:
            return json.loads((self.root / name).read_text())
        except FileNotFoundError:
            return default

    def session(self) -> dict:
        return self.stored("session.json", {"domains": ["gui", "user"], "manager": "Aqua"})

    def modes(self) -> list:
        return self.stored("modes.json", [])

    def next_fault(self, verb: str) -> int:
        faults = self.stored("faults.json", {})
        if not faults.get(verb):
            return 0
        code = faults[verb].pop(0)
        supervision.write(self.root / "faults.json", faults)
        return code

    def split(self, target: str) -> tuple[str, str]:
        kind, uid, *rest = target.split("/")
        if uid != self.uid:
            raise Refused(1, "Not privileged")
        return f"{kind}/{uid}", "/".join(rest)

    def require_domain(self, domain: str) -> None:
        kind = domain.split("/")[0]
        there = self.session()["domains"]
        if kind in there:
            return
        code = 125 if there else 112
        raise Refused(code, f"{code}: {WORDS[code]}")

    def folder(self, domain: str, label: str) -> Path:
        return self.root / "jobs" / domain.replace("/", ".") / label

    def loaded(self, domain: str, label: str) -> supervision.Status | None:
        return supervision.read_status(self.folder(domain, label))

    def require_loaded(self, domain: str, label: str) -> supervision.Status:
        status = self.loaded(domain, label)
        if status is None:
            raise not_found(domain, label)
        return status

    def set_disabled(self, target: str, disabled: bool) -> None:
        domain, label = self.split(target)
        table = self.stored("disabled.json", {})
        table.setdefault(domain, {})[label] = disabled
        supervision.write(self.root / "disabled.json", table)

    def is_disabled(self, domain: str, label: str) -> bool:
        return self.stored("disabled.json", {}).get(domain, {}).get(label, False)

    def verb_enable(self, target: str) -> None:
        self.set_disabled(target, False)

    def verb_disable(self, target: str) -> None:
        self.set_disabled(target, True)

    def verb_bootstrap(self, domain: str, path: str) -> None:
        self.require_domain(domain)
        if code := self.next_fault("bootstrap"):
            raise failed("Bootstrap", code)
        plist = self.read_plist(Path(path))
        label = plist["Label"]
        if self.is_disabled(domain, label):
            raise failed("Bootstrap", 5 if "disabled-gives-5" in self.modes() else 119)
        types = plist.get("LimitLoadToSessionType", "Aqua")
        if SESSION_TYPE[domain.split("/")[0]] not in ([types] if isinstance(types, str) else types):
            raise failed("Bootstrap", 134)
        if self.loaded(domain, label) is not None:
            raise failed("Bootstrap", 5)
        place = self.folder(domain, label)
        place.mkdir(parents=True, exist_ok=True)
        (place / "path").write_text(path)
        supervision.launch(place, self.spec(plist))

    def read_plist(self, path: Path) -> dict:
        try:
            plist = plistlib.loads(path.read_bytes())
        except (OSError, plistlib.InvalidFileException, ValueError) as e:
            raise failed("Bootstrap", 5) from e
        sound = isinstance(plist.get("Label"), str) and plist.get("ProgramArguments")
        # launchd distrusts a file that others may write, and expands nothing.
        if not sound or path.is_symlink() or path.stat().st_mode & 0o022:
            raise failed("Bootstrap", 5)
        if not plist["ProgramArguments"][0].startswith("/"):
            raise failed("Bootstrap", 5)
        return plist

    def spec(self, plist: dict) -> supervision.Spec:
        home = self.home
        env = {
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": home,
            "USER": "user",
            "LOGNAME": "user",
            "SHELL": "/bin/zsh",
            "TMPDIR": "/tmp",
            "XPC_SERVICE_NAME": plist["Label"],
        }
        keep = plist.get("KeepAlive", False)
        lazy = "no-spawn-until-kickstart" in self.modes()
        return supervision.Spec(
            argv=plist["ProgramArguments"],
            env={**env, **plist.get("EnvironmentVariables", {})},
            cwd=plist.get("WorkingDirectory", "/"),
            log=plist.get("StandardErrorPath", ""),
            umask=plist.get("Umask", 0o022),
            run_at_load=bool(plist.get("RunAtLoad")) and not lazy,
            restart=keep is True or keep == {"SuccessfulExit": False},
            throttle_s=plist.get("ThrottleInterval", 10),
            exit_timeout_s=plist.get("ExitTimeOut", 5),
            speed=self.speed,
        )

    def verb_bootout(self, target: str) -> None:
        domain, label = self.split(target)
        if not label:
            raise AssertionError("this would have logged the user out")
        self.require_domain(domain)
        if code := self.next_fault("bootout"):
            raise failed("Boot-out", code)
        status = self.loaded(domain, label)
        if status is None:
            raise failed("Boot-out", 3)
        if status.phase == "terminating":
            raise failed("Boot-out", 36)
        supervision.order(self.folder(domain, label), "leave")

    def verb_kickstart(self, *words: str) -> None:
        domain, label = self.split(words[-1])
        self.require_domain(domain)
        if code := self.next_fault("kickstart"):
            raise Refused(code, f"Could not kickstart: {code}: {WORDS.get(code, '')}")
        status = self.require_loaded(domain, label)
        if status.phase == "terminating":
            raise Refused(37, f"37: {WORDS[37]}")
        supervision.order(self.folder(domain, label), "force" if "-k" in words else "start")

    def verb_kill(self, name: str, target: str) -> None:
        domain, label = self.split(target)
        status = self.require_loaded(domain, label)
        if not status.pid:
            raise Refused(3, f"Could not signal service: 3: {WORDS[3]}")
        os.kill(status.pid, getattr(signal, name))

    def verb_print(self, target: str) -> None:
        domain, label = self.split(target)
        self.require_domain(domain)
        if not label:
            self.out.append(f"{domain} = {{\n\ttype = login\n}}")
            return
        status = self.require_loaded(domain, label)
        place = self.folder(domain, label)
        plist = plistlib.loads(Path((place / "path").read_text()).read_bytes())
        self.out.append("\n".join(self.described(domain, label, status, plist, place)))

    def described(self, domain: str, label: str, status, plist: dict, place: Path) -> list[str]:
        lines = [
            f"{domain}/{label} = {{",
            f"\tactive count = {1 if status.pid else 0}",
            f"\tpath = {(place / 'path').read_text()}",
            "\ttype = LaunchAgent",
            f"\tstate = {STATES[status.phase]}",
            "",
            f"\tprogram = {plist['ProgramArguments'][0]}",
            "\targuments = {",
            *(f"\t\t{word}" for word in plist["ProgramArguments"]),
            "\t}",
            "",
            f"\tstdout path = {plist.get('StandardOutPath', '')}",
            "\tdefault environment = {",
            "\t\tPATH => /usr/bin:/bin:/usr/sbin:/sbin",
            "\t}",
            f"\tdomain = {domain} [100005]",
            f"\tminimum runtime = {plist.get('ThrottleInterval', 10)}",
            # The gui domain allows no more than a minute.
            f"\texit timeout = {min(plist.get('ExitTimeOut', 5), 60)}",
            f"\truns = {status.runs}",
        ]
        if status.pid:
            lines.append(f"\tpid = {status.pid}")
        lines += [
            f"\tlast exit code = {exit_words(status)}",
            "\tspawn type = interactive (4)",
            # A decoy: nested blocks repeat names, and a careless reader takes these.
            "\tresource coalition = {",
            "\t\tstate = active",
            "\t\tpid = 1",
            "\t}",
            "\tproperties = keepalive | runatload",
            "}",
        ]
        return lines

    def verb_print_disabled(self, domain: str) -> None:
        self.require_domain(domain)
        self.out.append("disabled services = {")
        for label, off in self.stored("disabled.json", {}).get(domain, {}).items():
            self.out.append(f'\t"{label}" => {"disabled" if off else "enabled"}')
        self.out.append("}")

    def verb_managername(self) -> None:
        self.out.append(self.session()["manager"])


STATES = {
    "never": "not running",
    "running": "running",
    "scheduled": "spawn scheduled",
    "stopped": "not running",
    "failed": "not running",
    "terminating": "SIGTERMed",
}


def exit_words(status) -> str:
    if status.exit_code is None:
        return "(never exited)"
    if status.spawn_failed:
        return "78: EX_CONFIG"
    return str(status.exit_code) if status.exit_code >= 0 else str(-status.exit_code)
