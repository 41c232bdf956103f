"""Plays the Python of a release's environment: `python venv_python.py VENV words...`.

pip only writes down what it was asked; `swiftlmctl` is the real one from the checkout; `swiftlmd
serve` answers the admin socket. A JSON file at $FAKE_INSTALL says what goes wrong:
{"pip": "words that pip prints before it fails", "selfcheck": 69, "sick": ["0.2.0"],
 "mute": ["0.2.0"], "platform": "darwin"}; "sick" versions crash, "mute" ones give no answer,
"deaf" ones do not leave on SIGTERM, "older_config" ones refuse the configuration. "drain_s" is how
long one takes to leave, "patience_s" how long swiftlmctl waits for that; with "full_disk"
swiftlmctl cannot write.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import runpy
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / room) for room in ("proto", "engine", "daemon", "ctl", "tests/support")]
venv = Path(sys.argv[1])
# Beside the versions, so that a job without our environment finds it too.
plan_file = Path((venv / "plan").read_text())
plan = json.loads(plan_file.read_text()) if plan_file.exists() else {}
version = venv.parent.name.rpartition("-")[0]


def words() -> list[str]:
    """What follows -m, without the interpreter's own options."""
    given = sys.argv[2:]
    return given[given.index("-m") + 1 :] if "-m" in given else []


def pip(arguments: list[str]) -> int:
    with open(plan_file.with_name("pip.log"), "a") as log:
        log.write(json.dumps(arguments) + "\n")
    plan_file.with_name("pip.environ").write_text(json.dumps(dict(os.environ)))
    if "pip" in plan and "install" in arguments:
        print(plan["pip"], file=sys.stderr)
        return 1
    if "wheel" in arguments:
        folder = Path(arguments[arguments.index("--wheel-dir") + 1])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"swiftlm-{version}-py3-none-any.whl").touch()
    return 0


def located() -> None:
    """The places of the system that is played, by a user who is not root."""
    from swiftlm_proto import paths

    if plan.get("platform") == "darwin":
        paths.locate.__defaults__ = (None, "darwin")
        os.getuid = lambda: 501


def ctl(arguments: list[str]) -> None:
    located()
    sys.prefix = str(venv)  # before the first import of what reads it
    if "patience_s" in plan:  # as long as a test wants to wait for one that does not leave
        from swiftlmctl.service import base

        base.EXIT_TIMEOUT_S, base.EXIT_GRACE_S = plan["patience_s"], 3
    if arguments[:2] == ["config", "validate"] and version in plan.get("older_config", []):
        print("swiftlmctl: unknown option 'engine.future_option'", file=sys.stderr)
        sys.exit(1)
    if plan.get("full_disk"):
        os.fsync = full_disk
    sys.argv = ["swiftlmctl", *arguments]
    runpy.run_module("swiftlmctl", run_name="__main__")


def full_disk(_: int) -> None:
    raise OSError(28, "No space left on device")


def serve() -> int:
    located()
    if version in plan.get("sick", []):
        print("this release is sick", file=sys.stderr)
        return 1
    from swiftlm_proto.paths import locate

    paths = locate()
    paths.state.mkdir(parents=True, exist_ok=True)
    with open(paths.lock_file, "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        asyncio.run(answer(paths.admin_socket))
        paths.admin_socket.unlink(missing_ok=True)
    return 0


async def answer(socket: Path) -> None:
    from fake_admin import READY, FakeAdmin, FakeFits, said
    from grpclib.server import Server

    from swiftlm_proto import messages as m

    admin = FakeAdmin()
    admin.daemon.version, admin.daemon.pid = "0.0.0+checkout", os.getpid()
    pulled = socket.with_name("pulled")
    admin.daemon.models = [READY] if pulled.exists() else []
    admin.answer = [] if version in plan.get("mute", []) else said("Paris", f" ({version})")
    admin.events = [m.OperationEvent(done=True, model=READY)]

    async def pull(message: m.PullRequest):
        pulled.touch()
        admin.daemon.models = [READY]
        yield admin.events[0]

    admin.pull = pull
    server = Server([admin, FakeFits()])
    await server.start(path=str(socket))
    loop = asyncio.get_running_loop()

    def drain() -> None:
        if version not in plan.get("deaf", []):
            admin.daemon.state = "draining"
            loop.call_later(plan.get("drain_s", 0), server.close)

    loop.add_signal_handler(signal.SIGTERM, drain)
    await server.wait_closed()


module, *rest = words() or [""]
if "-" in sys.argv[2:]:  # a script on standard input: nothing here to be played
    sys.argv = sys.argv[sys.argv.index("-") :]
    exec(sys.stdin.read())
elif module == "pip":
    sys.exit(pip(rest))
elif module == "swiftlmd" and rest == ["selfcheck"]:
    sys.exit(plan.get("selfcheck", 0))
elif module == "swiftlmd":
    sys.exit(serve())
elif module == "swiftlmctl":
    ctl(rest)
