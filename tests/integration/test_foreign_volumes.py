"""Models on volumes where macOS keeps a `._NAME` beside each file: they serve as on APFS."""

from __future__ import annotations

import pytest
from foreign_volume import add_apple_doubles
from live_daemon import daemon, home
from tiny_models import make_model


@pytest.mark.timeout(240)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_model_with_apple_doubles_beside_its_files_loads_and_answers(
    streamed: bool,
) -> None:
    async with home() as place:
        add_apple_doubles(make_model("qwen3_moe", place.paths.models / "tiny", num_experts=12))
        options = {"engine__stream_experts": "on", "engine__expert_slots": 2} if streamed else {}
        async with daemon(place, real=True, **options) as live:
            status, answer = await live.chat(max_tokens=4, temperature=0, ignore_eos=True)
            assert status == 200, answer
