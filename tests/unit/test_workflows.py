"""The workflow files: valid YAML of the shape that runners read, and shell without complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yml"))


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return found


def scripts(path: Path) -> list[str]:
    return [
        step["run"] for job in read(path)["jobs"].values() for step in job["steps"] if "run" in step
    ]


def test_both_workflows_are_there() -> None:
    assert [path.name for path in FILES] == ["linux.yml", "mac.yml"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_workflow_has_the_shape_that_runners_read(path: Path) -> None:
    found = read(path)
    assert {"name", "jobs", "permissions"} <= found.keys()
    assert found[True]  # YAML 1.1 reads the key `on` as true
    for job in found["jobs"].values():
        assert job["timeout-minutes"] <= 60
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            assert "name" in step or "uses" in step
            if "uses" in step:
                assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_shellcheck_has_no_complaint_about_a_step(path: Path) -> None:
    steps = [re.sub(r"[$][{][{].*?[}][}]", "VALUE", script) for script in scripts(path)]
    text = "\n".join(f"(\n{step}\n)" for step in steps)
    done = subprocess.run(
        ["shellcheck", "-s", "bash", "-"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_linux_runs_what_ci_runs() -> None:
    assert ".ci/run" in scripts(FOLDER / "linux.yml")


def test_mac_covers_three_systems_and_every_file_it_names_exists() -> None:
    (job,) = read(FOLDER / "mac.yml")["jobs"].values()
    assert job["strategy"]["matrix"]["os"] == ["macos-14", "macos-15", "macos-26"]
    text = "\n".join(scripts(FOLDER / "mac.yml"))
    for wanted in ("install.sh --yes", "doctor --mac --json", "-m macos tests/launchd",
                   "-m metal tests/metal", "--kv turbo", "--uninstall"):  # fmt: skip
        assert wanted in text
    for name in re.findall(r"(?:tests|locks)/[\w./-]+", text):
        assert (ROOT / name).exists(), name


def test_options_that_mac_gives_the_installer_are_its_own() -> None:
    usage = (ROOT / "install.sh").read_text("utf-8")
    text = "\n".join(scripts(FOLDER / "mac.yml"))
    for line in re.findall(r"install\.sh (--[^|&\n]*)", text):
        for option in re.findall(r"--[a-z-]+", line):
            assert f"{option})" in usage or f"{option} " in usage, option
