"""The launchd job: exactly our keys, the golden file, and a schema that sees what launchd would."""

from __future__ import annotations

import plistlib
from pathlib import Path

import pytest

from swiftlm_proto.paths import locate
from swiftlmctl.service.job import LABEL, Job, job_for
from swiftlmctl.service.plist import encode, job_plist, problems
from swiftlmctl.service.unit import unit_text

ROOT = Path(__file__).resolve().parents[3]
KEYS = {
    "Label",
    "ProgramArguments",
    "RunAtLoad",
    "KeepAlive",
    "ThrottleInterval",
    "ExitTimeOut",
    "ProcessType",
    "LimitLoadToSessionType",
    "WorkingDirectory",
    "EnvironmentVariables",
    "StandardOutPath",
    "StandardErrorPath",
    "SoftResourceLimits",
    "Umask",
}


def sample(platform: str = "darwin", **changes: object) -> Job:
    home = "/Users/ada" if platform == "darwin" else "/home/ada"
    paths = locate({"HOME": home}, platform)
    return job_for(paths, {}, prefix=paths.app / "current", **changes)


def test_plist_has_exactly_our_keys() -> None:
    assert set(job_plist(sample())) == KEYS
    assert set(job_plist(sample(socket_activation=True))) == KEYS | {"Sockets"}


def test_plist_is_the_one_in_launchd() -> None:
    golden = ROOT / "launchd" / f"{LABEL}.plist"
    assert golden.read_bytes() == encode(sample())


def test_unit_is_the_one_in_launchd() -> None:
    golden = ROOT / "launchd" / "swiftlmd.service"
    assert golden.read_text() == unit_text(sample("linux"))


def test_plist_passes_its_schema_after_a_round_trip() -> None:
    for job in (sample(), sample(socket_activation=True)):
        assert problems(plistlib.loads(encode(job))) == []


def test_daemon_runs_isolated_and_in_the_foreground() -> None:
    program, *rest = job_plist(sample())["ProgramArguments"]
    assert program == "/Users/ada/Library/Application Support/swiftlm/current/bin/python3"
    assert rest == ["-I", "-X", "utf8", "-m", "swiftlmd", "serve"]


def test_hub_folder_is_handed_on_and_nothing_else_is() -> None:
    paths = locate({"HOME": "/Users/ada"}, "darwin")
    environ = {"HF_HOME": "/Volumes/hub", "HF_TOKEN": "secret", "PATH": "/x"}
    job = job_for(paths, environ, prefix=Path("/venv"))
    assert job_plist(job)["EnvironmentVariables"]["HF_HOME"] == "/Volumes/hub"
    assert b"secret" not in encode(job)


def test_place_that_the_job_names_is_the_usual_one() -> None:
    usual = locate({"HOME": "/Users/ada"}, "darwin")
    named = locate({"HOME": "/Users/ada", "SWIFTLM_HOME": str(usual.app)}, "darwin")
    assert named == usual  # or the daemon would log where nobody looks


def test_any_environment_can_be_the_service(tmp_path: Path) -> None:
    paths = locate({"HOME": str(tmp_path)}, "linux")
    job = job_for(paths, {}, prefix=Path("/opt/tools/swiftlm"))
    assert job.arguments[0] == "/opt/tools/swiftlm/bin/python3"


def test_current_release_is_named_by_its_link(tmp_path: Path) -> None:
    paths = locate({"HOME": str(tmp_path)}, "linux")
    release = paths.app / "versions" / "1" / "venv"
    release.mkdir(parents=True)
    (paths.app / "current").symlink_to("versions/1/venv")
    job = job_for(paths, {}, prefix=release)
    assert job.arguments[0] == str(paths.app / "current" / "bin" / "python3")


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("RunAtLoad", 1, "RunAtLoad is a int"),
        ("Umask", 77, "Umask is 77"),
        ("KeepAlive", {"SuccessfulExit": False, "Crashed": True}, "other conditions"),
        ("StandardErrorPath", "~/Library/Logs/x.log", "not an absolute path"),
        ("ProgramArguments", ["python3"], "not an absolute path"),
        ("Nice", -5, "not a key of ours"),
        ("EnvironmentVariables", {"A": 1}, "not a string"),
        ("Label", "other", "Label is"),
    ],
)
def test_schema_sees(key: str, value: object, complaint: str) -> None:
    assert complaint in " ".join(problems({**job_plist(sample()), key: value}))


def test_schema_sees_what_is_missing() -> None:
    plist = job_plist(sample())
    del plist["ExitTimeOut"]
    assert problems(plist) == ["ExitTimeOut is missing"]


def test_schema_sees_a_socket_that_others_may_open() -> None:
    plist = job_plist(sample(socket_activation=True))
    plist["Sockets"]["control"]["SockPathMode"] = 600  # an octal habit
    assert "SockPathMode" in " ".join(problems(plist))


def test_unit_escapes_what_systemd_would_expand() -> None:
    job = Job(
        ("/opt/my 100%/$x/python3", "-m", 'a"b'), Path("/a b%"), Path("/l"), {"HF_HOME": "/h h"}
    )
    text = unit_text(job)
    assert 'ExecStart="/opt/my 100%%/$$x/python3" -m "a\\"b"' in text
    assert "WorkingDirectory=/a b%%" in text
    assert 'Environment="HF_HOME=/h h"' in text
