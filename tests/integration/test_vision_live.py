"""The whole service with a tiny vision model: pictures in three dialects, listed and priced."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from live_daemon import LiveDaemon, daemon, home
from planned_models import M4_24
from tiny_models import make_model
from tiny_vision import make_vision_model, picture

from swiftlm_engine.brain import plan
from swiftlm_engine.brain.facts import WeightPart, read_model
from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.brain.vision import FEATURE_BYTES

RED, BLUE = (base64.b64encode(picture(seed)).decode() for seed in (1, 2))
TEXT = "what is this"
LIMITS = {"temperature": 0, "ignore_eos": True}


def data_uri(image: str) -> str:
    return f"data:image/png;base64,{image}"


def chat(*images: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": data_uri(image)}} for image in images]
    content = [*parts, {"type": "text", "text": TEXT}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 8, **LIMITS}


def messages(image: str) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": image}
    content = [{"type": "image", "source": source}, {"type": "text", "text": TEXT}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 8, **LIMITS}


def responses(image: str) -> dict[str, Any]:
    parts = [{"type": "input_image", "image_url": data_uri(image)}]
    content = [*parts, {"type": "input_text", "text": TEXT}]
    return {"input": [{"role": "user", "content": content}], "max_output_tokens": 8, **LIMITS}


async def post(live: LiveDaemon, path: str, body: dict[str, Any]) -> Any:
    async with live.http.post(path, json={"model": "eyes", **body}) as reply:
        return reply.status, await reply.json()


@pytest.mark.timeout(240)
async def test_every_dialect_shows_the_model_the_picture() -> None:
    async with home() as place:
        make_vision_model("mistral3", place.paths.models / "eyes")
        make_model("llama", place.paths.models / "text")
        async with daemon(place, real=True) as live:
            status, red = await post(live, "/v1/chat/completions", chat(RED))
            assert status == 200, red
            _, blue = await post(live, "/v1/chat/completions", chat(BLUE))
            said = red["choices"][0]["message"]["content"]
            assert said != blue["choices"][0]["message"]["content"]
            tokens = red["usage"]["prompt_tokens"]
            assert tokens > 20

            _, both = await post(live, "/v1/chat/completions", chat(RED, BLUE))
            assert both["usage"]["prompt_tokens"] > tokens
            _, answer = await post(live, "/v1/messages", messages(RED))
            assert answer["content"][0]["text"] == said
            _, count = await post(live, "/v1/messages/count_tokens", messages(RED))
            assert count["input_tokens"] == tokens
            _, answer = await post(live, "/v1/responses", responses(RED))
            assert answer["output"][-1]["content"][0]["text"] == said

            broken = chat(base64.b64encode(picture(1)[:60]).decode())
            status, refused = await post(live, "/v1/chat/completions", broken)
            assert status == 400
            assert "image 1 of 1" in refused["error"]["message"]

            async with live.http.get("/v1/models") as reply:
                listed = {m["id"]: m for m in (await reply.json())["data"]}
            assert listed["eyes"]["vision"] is True
            assert listed["eyes"]["input_modalities"] == ["text", "image"]
            assert listed["text"]["vision"] is False


def test_the_plan_prices_the_tower_where_it_is_loaded(tmp_path) -> None:
    facts = read_model(make_vision_model("gemma3", tmp_path))
    made = plan.make_plan(facts, plan.PlanRequest(images=True), M4_24)
    tower = facts.weights.part(WeightPart.VISION)
    assert made.need.of(EntryKind.IMAGES) == tower + FEATURE_BYTES > FEATURE_BYTES
    assert not any("text only" in warning for warning in made.warnings)
    without = plan.make_plan(facts, plan.PlanRequest(), M4_24)
    assert without.need.of(EntryKind.IMAGES) == 0
    assert any("text only" in warning for warning in without.warnings)
