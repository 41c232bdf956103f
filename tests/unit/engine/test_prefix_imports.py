"""What the writer thread runs must not be able to touch an array: its modules never load MLX."""

import subprocess
import sys

THREAD_MODULES = ["writer", "block_file"]
BRAIN_MODULES = ["prefix_index", "radix", "tokens"]


def test_writer_thread_and_index_load_no_mlx():
    names = [f"swiftlm_engine.prefix.{m}" for m in THREAD_MODULES]
    names += [f"swiftlm_engine.brain.{m}" for m in BRAIN_MODULES]
    script = f"import {', '.join(names)}, sys; sys.exit('mlx.core' in sys.modules)"
    path = {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", script], env=path, check=False).returncode == 0
