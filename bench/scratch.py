"""Peers live in environments of their own: their dependencies disagree with ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.models import CACHE


class Unavailable(Exception):
    """Why a peer does not run on this machine."""


def scratch_python(name: str, packages: list[str], bare: list[str], **environ: str) -> Path:
    """The Python of the environment `name`, made once; `bare` come without what they ask for.

    `environ` is what their builds need to be told.
    """
    folder = CACHE / "peers" / name
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        print(f"making the environment of {name} (once)", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(folder))
        _run(str(python), "-m", "pip", "install", "-q", *packages, **environ)
        if bare:
            _run(str(python), "-m", "pip", "install", "-q", "--no-deps", *bare, **environ)
        (folder / "complete").touch()
    return python


def _run(*command: str, **environ: str) -> None:
    ours = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_PRELOAD")}
    done = subprocess.run(command, env=ours | environ, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(f"{' '.join(command[1:])}: {said[-1] if said else done.returncode}")
