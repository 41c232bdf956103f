"""The launchd agent against the real launchd: for a person at a Mac, `pytest -m macos`.

Skips itself where swiftlm's own service is installed: the label is one and the same.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes_bin.control import Script, eventually

from swiftlmctl.service import Phase
from swiftlmctl.service.job import Job
from swiftlmctl.service.launchd import LaunchdAgent

pytestmark = [
    pytest.mark.macos,
    pytest.mark.skipif(sys.platform != "darwin", reason="needs launchd"),
]


class Agent:
    def __init__(self, folder: Path) -> None:
        self.script = Script(folder / "script.json")
        self.logs = folder / "logs"
        self.job = Job(self.script.arguments, folder, self.logs / "launchd.log")

    def new(self) -> LaunchdAgent:
        return LaunchdAgent(Path.home(), self.logs)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    if made.new().state().phase is not Phase.NOT_INSTALLED:
        pytest.skip("swiftlm's own service is installed here")
    yield made
    made.new().uninstall()


def test_plutil_accepts_the_job(agent: Agent) -> None:
    (plist,) = agent.new().install(agent.job)
    done = subprocess.run(
        ["/usr/bin/plutil", "-lint", str(plist)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_start_stop_restart_and_uninstall(agent: Agent) -> None:
    agent.new().install(agent.job)
    agent.new().start()
    assert eventually(lambda: agent.script.events() == ["start"])
    state = agent.new().state()
    assert (state.phase, state.enabled, state.exit_timeout_s) == (Phase.RUNNING, True, 45)

    agent.new().restart()
    assert eventually(lambda: agent.script.events() == ["start", "SIGTERM", "end", "start"])

    agent.new().stop()
    assert agent.new().state().phase is Phase.STOPPED

    agent.new().uninstall()
    assert agent.new().state().phase is Phase.NOT_INSTALLED


def test_bootout_and_bootstrap_in_one_breath(agent: Agent) -> None:
    agent.script.write(term_s=3)
    agent.new().install(agent.job)
    agent.new().start()
    changed = Job(agent.job.arguments, agent.job.app, agent.job.log, {"HF_HOME": "/tmp"})
    agent.new().install(changed)
    agent.new().start()
    assert agent.new().state().phase is Phase.RUNNING


def test_disabled_label_is_started_again(agent: Agent) -> None:
    agent.new().install(agent.job)
    agent.new().start()
    agent.new().disable()
    assert not agent.new().state().enabled
    agent.new().start()
    assert agent.new().state().enabled
