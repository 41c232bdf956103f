"""Weights that change on disk under a daemon that streams them."""

from __future__ import annotations

import os

import pytest
from live_daemon import daemon, eventually, home
from tiny_models import make_model


@pytest.mark.timeout(240)
async def test_a_model_whose_file_was_truncated_is_degraded_and_serves_again_once_it_is_whole() -> (
    None
):
    async with home() as place:
        folder = make_model("qwen3_moe", place.paths.models / "tiny", num_experts=12)
        weights = folder / "model.safetensors"
        whole = weights.read_bytes()
        streamed = {"engine__stream_experts": "on", "engine__expert_slots": 2}
        async with daemon(place, real=True, **streamed) as live:
            asked = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
            status, sound = await live.chat(**asked)
            assert status == 200

            async def health() -> dict:
                async with live.http.get("/health") as reply:
                    return await reply.json()

            async def degraded() -> bool:
                return (await health())["status"] == "degraded"

            os.truncate(weights, len(whole) // 2)
            status, failed = await live.chat(**asked)
            assert status == 500
            assert "model.safetensors changed" in failed["error"]["message"]
            await eventually(degraded, 20)
            (model,) = (await health())["models"]
            assert "is cut" in model["error"]
            assert "pull the model again" in model["error"]

            with weights.open("r+b") as file:
                file.write(whole)
            status, again = await live.chat(**asked)
            assert (status, again["choices"]) == (200, sound["choices"])
            assert (await health())["status"] == "ok"
