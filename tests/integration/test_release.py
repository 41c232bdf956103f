"""What a release publishes: equal builds, hashes, an SBOM, one line that installs and removes."""

from __future__ import annotations

import importlib.util
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from fakes_bin.install_box import InstallBox

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts/release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = load()


class ReleasedBox(InstallBox):
    """A machine without a checkout: the archive lies where its curl finds it."""

    def __init__(self) -> None:
        super().__init__("none")
        self.archive = self.root / "swiftlm-0.1.0.tar.gz"
        with tarfile.open(self.archive, "w:gz") as archive:
            archive.add(self.checkout, "swiftlm-0.1.0")
        self.script = release.installer(
            ROOT, "0.1.0", release.digest(self.archive), "https://example.org/swiftlm.tar.gz"
        )
        shutil.rmtree(self.checkout)
        self.program("curl", f'cp "{self.archive}" "$3"')
        self.temporary = self.root / "tmp"
        self.temporary.mkdir()

    def piped(
        self, *words: str, script: str = "", shell: str = "dash"
    ) -> subprocess.CompletedProcess[str]:
        """`curl ... | sh -s -- words`."""
        return subprocess.run(
            [shutil.which(shell) or shell, "-s", "--", *words],
            input=script or self.script,
            env=self.environ | {"TMPDIR": str(self.temporary)},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )


@pytest.fixture
def box() -> Iterator[ReleasedBox]:
    made = ReleasedBox()
    yield made
    made.close()


def test_one_line_ends_with_an_answer_and_the_same_line_takes_it_away(box: ReleasedBox) -> None:
    done = box.piped()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Paris" in done.stdout
    assert list(box.temporary.iterdir()) == []
    assert box.current() == "0.1.0"
    asked = box.piped("--uninstall")
    assert (asked.returncode, "--yes" in asked.stderr) == (64, True)
    gone = box.piped("--uninstall", "--yes")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    left = {path.name for path in box.app.iterdir()}
    assert left <= {"config.toml", "models", "pulled"}


def test_an_archive_of_another_hash_installs_nothing(box: ReleasedBox) -> None:
    box.archive.write_bytes(box.archive.read_bytes() + b"\0")
    done = box.piped()
    assert (done.returncode, "nothing was installed" in done.stderr) == (65, True)
    assert list(box.home.iterdir()) == []
    assert list(box.temporary.iterdir()) == []


def test_no_network_and_half_a_script_install_nothing(box: ReleasedBox) -> None:
    box.program("curl", "exit 22")
    assert "cannot fetch" in box.piped().stderr
    half = box.script[: len(box.script) // 2]
    assert "Paris" not in box.piped(script=half).stdout
    assert list(box.home.iterdir()) == []


def test_the_exit_code_of_the_installation_is_passed_on(box: ReleasedBox) -> None:
    assert box.piped("--no-start").returncode == 10
    assert box.piped("--nonsense").returncode == 64


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_shellcheck_has_no_complaint(box: ReleasedBox) -> None:
    done = subprocess.run(
        ["shellcheck", "-s", "sh", "-"], input=box.script, capture_output=True, text=True
    )
    assert done.stdout == ""


def test_builds_that_differ_are_not_published(tmp_path: Path) -> None:
    first, second = tmp_path / "1" / "a.whl", tmp_path / "2" / "a.whl"
    for file in (first, second):
        file.parent.mkdir()
        file.write_bytes(b"same")
    release.compare([first], [second])
    second.write_bytes(b"other")
    with pytest.raises(release.NotReproducible, match=r"a\.whl"):
        release.compare([first], [second])
    with pytest.raises(release.NotReproducible, match="names"):
        release.compare([first], [])


def test_the_sbom_names_each_locked_package_with_its_hashes() -> None:
    bom = release.sbom(ROOT)
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    assert bom == release.sbom(ROOT)
    lock = (ROOT / "locks/macos.txt").read_text()
    parts = bom["components"]
    assert len(parts) == sum("==" in line for line in lock.splitlines())
    assert {"mlx", "mlx-lm", "mlx-metal", "aiohttp"} <= {part["name"] for part in parts}
    assert len({part["bom-ref"] for part in parts}) == len(parts)
    hashes = [h["content"] for part in parts for h in part["externalReferences"][0]["hashes"]]
    assert len(hashes) == lock.count("--hash=sha256:")
    assert all(part["externalReferences"][0]["hashes"] for part in parts)
    json.dumps(bom)


def test_sums_are_read_by_sha256sum(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("b.txt", "a.txt")]
    for file in files:
        file.write_text(file.name)
    text = release.sums(files)
    assert [line.split()[1] for line in text.splitlines()] == ["a.txt", "b.txt"]
    done = subprocess.run(
        ["sha256sum", "-c", "-"], cwd=tmp_path, input=text, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_the_notes_are_the_changelogs_section(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/changelog.md").write_text(
        "# Changelog\n\n## 0.2.0\n\n- new\n\n## 0.1.0\n\n- old\n"
    )
    assert release.changelog_section(tmp_path, "0.2.0") == "## 0.2.0\n\n- new\n"
    assert release.changelog_section(tmp_path, "0.1.0") == "## 0.1.0\n\n- old\n"
    with pytest.raises(SystemExit, match=r"0\.3\.0"):
        release.changelog_section(tmp_path, "0.3.0")


def test_the_version_stands_in_one_place() -> None:
    version = release.version_of(ROOT)
    assert release.changelog_section(ROOT, version)
    tracked = [*ROOT.glob("*/swift*/**/*.py"), ROOT / "install.sh", ROOT / "scripts/get.sh"]
    assert [file for file in tracked if f'"{version}"' in file.read_text("utf-8")] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_builds_are_equal_and_the_archive_holds_what_install_sh_needs(tmp_path: Path) -> None:
    """Fetches the locked build tool."""
    files = release.build_twice(tmp_path / "work", tmp_path)
    [archive] = [file for file in files if file.suffix == ".gz"]
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as found:
        names = {name.partition("/")[2] for name in found.getnames()}
    assert {"install.sh", "pyproject.toml", "locks/macos.txt", "locks/build.txt"} <= names
    assert "ctl/swiftlmctl/main.py" in names
    assert not [name for name in names if name.startswith(("tests", "bench"))]
