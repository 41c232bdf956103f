"""Ranks of a pipeline in processes of their own, by either way to hand hidden states on."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tiny_models import make_model

from swiftlm_engine.cluster.ring import free_address

SPLITS = [(0, 2), (2, 3), (3, 5)]  # layers

RANK = """
import json, sys
from pathlib import Path
import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from swiftlm_engine.split import pipeline
from swiftlm_engine.cluster.ring import join_ring

folder, hop, told = Path(sys.argv[1]), getattr(pipeline, sys.argv[2]), json.loads(sys.argv[3])
rank = told["rank"]
ring = join_ring(told["addresses"], rank)
model, _ = load_model(folder, lazy=True)
pipeline.install(model, range(*told["layers"]), hop(ring))
caches = make_prompt_cache(model)
for ids in ([5, 9, 200, 31], [17], [40]):
    logits = model(mx.array([ids]), cache=caches)
    mx.eval(logits, [c.state for c in caches])
if rank == 0:
    whole, _ = load_model(folder)
    expected = whole(mx.array([[5, 9, 200, 31, 17, 40]]))[:, -1]
    print(mx.allclose(logits[:, -1], expected, rtol=1e-4, atol=1e-4).item())
"""


@pytest.mark.parametrize("hop", ["SumHop", pytest.param("RingHop", marks=pytest.mark.slow)])
def test_three_ranks_have_the_logits_of_one(tmp_path, room_path, hop):
    folder = make_model("llama", tmp_path / "model", num_hidden_layers=5)
    addresses = [free_address("127.0.0.1") for _ in SPLITS]
    environ = {**os.environ, "PYTHONPATH": room_path}
    ranks = []
    for rank, layers in enumerate(SPLITS):
        told = json.dumps({"rank": rank, "layers": layers, "addresses": addresses})
        command = [sys.executable, "-c", RANK, folder, hop, told]
        pipe = subprocess.PIPE
        ranks.append(subprocess.Popen(command, env=environ, stdout=pipe, text=True))
    try:
        assert ranks[0].communicate(timeout=60)[0] == "True\n"
    finally:
        for process in ranks:
            process.kill()
            process.wait()
