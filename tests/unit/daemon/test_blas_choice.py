"""What `doctor` makes of the BLAS libraries of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from swiftlmd.engines import blas
from swiftlmd.engines.blas import BlasSpeed, installed, verdict

OPENBLAS = BlasSpeed("/usr/lib/openblas.so.0", 0.06e-3, 0.26e-3)
BLIS = BlasSpeed("/usr/lib/blis.so.4", 0.06e-3, 2.5e-3)
WHEEL = BlasSpeed("", 0.77e-3, 12e-3)


def library(root: Path, name: str) -> str:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return str(path)


def test_a_fast_one_in_use_passes_and_all_are_named() -> None:
    found = verdict([OPENBLAS, BLIS, WHEEL])
    assert found.good
    assert not found.fix
    for words in (OPENBLAS.library, BLIS.library, "0.26 ms", "the BLAS of MLX's wheel"):
        assert words in found.words


def test_the_wheels_own_alone_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = {"apt-get": "libopenblas0-pthread", "dnf": "openblas-threads", "pacman": "openblas"}
    for tool, package in tools.items():
        monkeypatch.setattr(blas.shutil, "which", lambda name, tool=tool: name == tool or None)
        found = verdict([WHEEL])
        assert not found.good
        assert package in found.fix


def test_a_faster_one_beside_the_one_in_use_names_how_to_use_it() -> None:
    found = verdict([BLIS, OPENBLAS, WHEEL])
    assert not found.good
    assert f'LD_PRELOAD = "{OPENBLAS.library}" under [engine.environment]' in found.words
    assert found.fix == "swiftlmctl config edit"


def test_noise_is_no_reason_to_change() -> None:
    again = BlasSpeed("/usr/lib/other.so.0", 0.06e-3, 0.2e-3)
    assert verdict([OPENBLAS, again, WHEEL]).good


def test_a_busy_moment_makes_no_good_library_slow() -> None:
    assert verdict([BlasSpeed(OPENBLAS.library, 0.07e-3, 1.23e-3), WHEEL]).good
    assert not verdict([BLIS, WHEEL]).good


def test_nothing_measured_is_said() -> None:
    assert not verdict([]).good


def test_each_library_is_found_once_the_one_in_use_first(tmp_path: Path) -> None:
    openblas = library(tmp_path, "lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0")
    blis = library(tmp_path, "lib/x86_64-linux-gnu/blis-pthread/libblis.so.4")
    Path(tmp_path / "lib/x86_64-linux-gnu/libopenblas.so.0").symlink_to(openblas)
    assert installed({}, tmp_path) == [openblas, blis, ""]
    assert installed({"LD_PRELOAD": blis}, tmp_path) == [blis, openblas, ""]


def test_a_library_that_mlx_does_not_run_with_is_left_out() -> None:
    missing = "/nowhere/libmissing.so"
    found = blas.measured(missing, {"PATH": "/usr/bin:/bin", "PYTHONPATH": "/nowhere"})
    assert found is None
