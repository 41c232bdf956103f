"""The servers of others that are not in our environment, on the same weights as ours."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.gguf_text import write_dense
from bench.models import CACHE
from bench.scratch import Unavailable, scratch_python
from bench.servers import Server, free_port, running, wait_for

# What vllm-mlx imports when it serves text; the rest of its list is a web page and torch.
_VLLM_MLX = (
    "mlx[cpu]", "mlx-lm>=0.31.3,<0.32", "fastapi", "uvicorn", "psutil", "prometheus-client", "mcp",
    "jsonschema", "lm-format-enforcer", "llguidance", "pytz", "requests", "tabulate", "pillow",
    "pyyaml", "python-multipart", "opencv-python-headless",
)  # fmt: skip
_CONTEXT = 2048


@contextlib.contextmanager
def vllm_mlx(folder: Path) -> Iterator[Server]:
    """0.6.0, with its continuous batching; it needs an mlx-lm before 0.32."""
    bare = ["vllm-mlx==0.6.0", "mlx-vlm==0.7.10"]
    python = scratch_python("vllm-mlx", list(_VLLM_MLX), bare)
    command = [str(python.parent / "vllm-mlx"), "serve", str(folder), "--continuous-batching"]
    with _serving("vllm-mlx", command, dict(os.environ), str(folder), "/health") as server:
        yield server


@contextlib.contextmanager
def llama_cpp(file: Path) -> Iterator[Server]:
    """llama-cpp-python's server 0.3.36 on the weights of `file` as float32, as ours has them.

    It is built from source, without its part for images, unless LLAMA_PYTHON names a Python that
    has it.
    """
    dense = CACHE / "models" / f"{file.stem}-dense.gguf"
    if not dense.exists():
        write_dense(file, dense)
    python = os.environ.get("LLAMA_PYTHON") or _built_llama()
    command = [python, "-m", "llama_cpp.server", "--model", str(dense)]
    command += ["--n_ctx", str(_CONTEXT), "--n_threads", str(os.cpu_count()), "--verbose", "false"]
    command += ["--interrupt_requests", "false"]  # else a second client ends the first one's answer
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_PRELOAD")}
    with _serving("llama.cpp server", command, environ, str(dense), "/v1/models") as server:
        yield server


def _built_llama() -> str:
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise Unavailable(
            "it is built from source and there is no C++ compiler; install one, or name a Python "
            "that has llama-cpp-python in LLAMA_PYTHON"
        )
    packages = ["llama-cpp-python[server]==0.3.36"]
    return str(scratch_python("llama-cpp", packages, [], CMAKE_ARGS="-DLLAVA_BUILD=OFF"))


@contextlib.contextmanager
def _serving(
    name: str, command: list[str], environ: dict[str, str], model: str, health: str
) -> Iterator[Server]:
    port = free_port()
    output = Path(tempfile.gettempdir()) / f"bench-peer-{port}"
    with running([*command, "--port", str(port)], environ, output) as process:
        try:
            wait_for(f"http://127.0.0.1:{port}{health}", process)
        except (RuntimeError, TimeoutError) as error:
            said = output.read_text(errors="replace").strip().splitlines()
            raise Unavailable(said[-1] if said else str(error)) from error
        yield Server(name, f"http://127.0.0.1:{port}/v1", model, process)
