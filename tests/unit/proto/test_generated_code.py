"""The committed code is what the compiler makes of the .proto files."""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_generated_code_matches_the_proto_files(tmp_path):
    subprocess.run(
        [str(ROOT / "scripts" / "generate_proto.sh"), str(tmp_path / "gen")],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHON": sys.executable},
        timeout=120,
    )
    committed = ROOT / "proto" / "swiftlm_proto" / "_gen"
    names = [str(p.relative_to(committed)) for p in committed.rglob("*.py")]
    _, differ, missing = filecmp.cmpfiles(committed, tmp_path / "gen", names, shallow=False)
    assert names
    assert (differ, missing) == ([], []), "run `make proto` and commit the result"
