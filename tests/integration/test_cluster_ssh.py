"""Hosts that ssh reaches are looked at as those with an agent are, over a stand-in for ssh."""

from __future__ import annotations

from pathlib import Path

import pytest
from hollow_models import make_hollow_model
from ssh_host import ssh_to

from swiftlm_engine.brain.facts import read_model
from swiftlm_engine.brain.plan import MachineLimits
from swiftlm_engine.cluster import transport
from swiftlm_proto import messages as m
from swiftlm_proto.paths import Paths, under
from swiftlmd.engines.group_secret import keep_secret, secret_file
from swiftlmd.hosts.checks import Examiner
from swiftlmd.hosts.registry import Host

Kind = m.HostProblemKind
STUDIO = Host("studio", 1)


class Readings:
    def limits(self, *, committed_bytes: int, returning_bytes: int) -> MachineLimits:
        return MachineLimits(ram_bytes=8 * 10**9)


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    ssh_to(tmp_path / "studio", tmp_path / "bin", monkeypatch)
    return under(tmp_path / "studio")


@pytest.fixture
def examiner(tmp_path: Path) -> Examiner:
    examiner = Examiner(under(tmp_path / "leader"), Readings())
    keep_secret(examiner.secret_file)
    return examiner


def share_secret(examiner: Examiner, studio: Paths, secret: bytes = b"") -> None:
    copy = secret_file(studio)
    copy.parent.mkdir(parents=True)
    copy.write_bytes(secret or examiner.secret_file.read_bytes())
    copy.chmod(0o600)


def test_a_host_behind_ssh_reports_itself_its_models_and_its_link(
    studio: Paths, examiner: Examiner
) -> None:
    share_secret(examiner, studio)
    make_hollow_model(studio.models / "tiny")
    mark = read_model(studio.models / "tiny").fingerprint
    check = examiner.examine(STUDIO, {"tiny": mark, "other": "none"})
    assert [problem.kind for problem in check.problems] == [Kind.MODEL_MISSING]
    assert check.models == {"tiny"}
    assert check.link is not None
    assert check.link.bytes_s.low > 0
    assert check.report is not None
    assert check.report.machine.ram_bytes > 0
    assert check.report.visitor == "127.0.0.1"


def test_a_secret_that_is_not_the_leaders_is_told_through_ssh(
    studio: Paths, examiner: Examiner
) -> None:
    (problem,) = examiner.examine(STUDIO, {}).problems
    assert problem.kind is Kind.UNREACHABLE
    assert "the group's secret is not here" in problem.reason
    assert f"a copy of {examiner.secret_file}" in problem.fix
    share_secret(examiner, studio, b"another secret than the leader's")
    (problem,) = examiner.examine(STUDIO, {}).problems
    assert problem.kind is Kind.SECRET


def test_what_ssh_says_is_handed_on(
    studio: Paths, examiner: Examiner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (problem,) = examiner.examine(Host("nowhere", 1), {}).problems
    assert problem.kind is Kind.UNREACHABLE
    assert "ended with code 255: ssh: Could not resolve hostname nowhere" in problem.reason
    assert problem.fix.startswith("`ssh nowhere` must log in and ask nothing")
    (tmp_path / "bin" / "banner").write_text("Welcome to this host\n")
    monkeypatch.setattr(transport, "lend_command", lambda: ["true"])
    (problem,) = examiner.examine(STUDIO, {}).problems
    assert problem.kind is Kind.SILENT
    assert "prints" in problem.fix
