"""SmolLM2 over several ranks of this machine: the greedy text of one."""

from __future__ import annotations

import json

import pytest
from engine_process import engine_process

from swiftlm_proto import messages as m

PROMPTS = ("The capital of France is", "Once upon a time there was a fox who")


async def texts(engine, folder):
    loaded = (await engine.load(folder, prefix_cache_bytes=64 << 20))[-1]
    assert loaded.stage is m.LoadEventStage.READY, loaded.fault
    greedy = m.Sampling(temperature=0.0)
    found = []
    for i, text in enumerate([*PROMPTS, *PROMPTS]):  # the second time from the prefix cache
        request = m.GenerateRequest(request_id=f"r{i}", text=text, max_tokens=12, sampling=greedy)
        found.append((await engine.ask(request))[0])
    return loaded.model, found


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("split", "size"), [("pipeline", 4), ("pipeline", 2), ("tensor", 3)])
async def test_a_real_model_over_several_ranks_says_what_it_says_on_one(
    tmp_path, room_path, smollm2, split, size
):
    async with engine_process(tmp_path, room_path) as engine:
        whole, expected = await texts(engine, smollm2)
    (tmp_path / "e.sock").unlink()
    secret, file = tmp_path / "secret", tmp_path / "group.json"
    secret.touch(0o600)
    secret.write_text("a secret of a group of tests")
    fields = {"hosts": ["localhost"] * size, "secret_file": str(secret), "lost_after_s": 60}
    file.write_text(json.dumps(fields | {"split": split}))
    program = ("-m", "swiftlm_engine", "--group", str(file))
    async with engine_process(tmp_path, room_path, program) as engine:
        share, found = await texts(engine, smollm2)
    assert "Paris" in expected[0]
    assert found == expected
    assert share.weight_bytes < whole.weight_bytes
