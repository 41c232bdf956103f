"""The pass over one picture is priced and bounded: the tower has no chunks."""

from __future__ import annotations

import gc
import io

import mlx.core as mx
import numpy as np
import pytest
from engine_harness import EngineHarness
from PIL import Image
from planned_models import M4_24
from tiny_vision import CONFIGS, _family, make_vision_model

from swiftlm_engine.brain import plan
from swiftlm_engine.brain.facts import read_model
from swiftlm_engine.brain.facts.tower import TowerShape, tower_shape
from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.brain.plan import image_scratch
from swiftlm_engine.brain.plan.image_scratch import max_patches
from swiftlm_engine.brain.plan.machine import Accelerator
from swiftlm_engine.messages import GenerateJob
from swiftlm_engine.text.chat import Chat, ImagePart, Message

SIDE = 192  # 576 patches


class Names:
    """As much of a tokenizer as a family asks for."""

    def convert_ids_to_tokens(self, ids: object) -> object:
        return ["x"] * len(ids) if isinstance(ids, list) else "x"


def wide(name: str) -> dict[str, object]:
    """The tiny family with a tower that is wide, and takes a picture of `SIDE` as it is."""
    config = CONFIGS[name] | {"boi_token_id": 1, "image_token_id": 2, "eoi_token_id": 3}
    tower = dict(config["vision_config"]) | {"intermediate_size": 512}
    tower |= {"embed_dim": 128} if name == "qwen2_vl" else {"hidden_size": 128}
    tower |= {"head_dim": 64, "global_head_dim": 64} if name in ("gemma4", "pixtral") else {}
    tower |= {"head_dim": 64} if name == "mistral3" else {}
    if name in ("gemma3", "pixtral", "mistral3"):
        tower["image_size"] = SIDE
    return config | {"vision_config": tower}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("size", ["tiny", pytest.param("wide", marks=pytest.mark.slow)])
def test_a_tower_takes_no_more_than_its_price(name, size):
    config = wide(name)
    if size == "tiny":
        config["vision_config"] |= CONFIGS[name]["vision_config"]
        if name in ("gemma3", "pixtral", "mistral3"):
            config["vision_config"]["image_size"] = SIDE
    shape = tower_shape(config)
    family = _family(config, Names())
    pixels = mx.array(np.random.default_rng(0).integers(0, 256, (1, SIDE, SIDE, 3), np.uint8))
    mx.eval(family.tower.parameters(), pixels)
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(family.encode(pixels))
    peak = mx.get_peak_memory() - before
    price = image_scratch.image_scratch(shape, Accelerator.CPU, 4, (SIDE // 8) ** 2)
    assert peak <= price <= 2.5 * peak


LARGE = TowerShape(1280, 5120, 16, 1176, 16_384, is_fixed=False, pads_heads=False, masked=False)


@pytest.mark.parametrize("accelerator", Accelerator)
@pytest.mark.parametrize("itemsize", [2, 4])
def test_the_largest_picture_stays_within_the_bound(accelerator, itemsize):
    patches = max_patches(LARGE, accelerator, itemsize)
    scratch = [
        image_scratch.image_scratch(LARGE, accelerator, itemsize, patches + n) for n in (0, 1)
    ]
    assert scratch[0] <= image_scratch.MAX_IMAGE_SCRATCH_BYTES
    assert patches == LARGE.max_patches or scratch[1] > image_scratch.MAX_IMAGE_SCRATCH_BYTES
    assert patches >= 2_000


@pytest.mark.parametrize("name", ["gemma4", "mistral3", "pixtral", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("size", [(300, 300), (900, 100), (64, 640)])
def test_a_picture_is_scaled_down_to_the_patches_it_may_have(name, size):
    config = CONFIGS[name] | {"boi_token_id": 1, "image_token_id": 2, "eoi_token_id": 3}
    family = _family(config, Names())
    family.limit(240)
    pixels = family.fit(Image.new("RGB", size)).pixels
    assert pixels.shape[0] * pixels.shape[1] <= 240 * 8 * 8


def test_the_plan_prices_the_pass_and_the_engine_cuts_by_the_same_rule(tmp_path, monkeypatch):
    folder = make_vision_model("qwen2_vl", tmp_path)
    facts = read_model(folder)
    request = plan.PlanRequest(images=True, parallel=1, context=64)
    made = plan.make_plan(facts, request, M4_24)
    tower = image_scratch.image_scratch(facts.tower, Accelerator.METAL, facts.itemsize())
    without = plan.make_plan(facts, plan.PlanRequest(parallel=1, context=64), M4_24)
    assert made.need.of(EntryKind.SCRATCH) == tower > without.need.of(EntryKind.SCRATCH)

    monkeypatch.setattr(image_scratch, "MAX_IMAGE_SCRATCH_BYTES", 1 << 20)
    most = max_patches(facts.tower, Accelerator.CPU, 4)
    file = io.BytesIO()
    Image.new("RGB", (400, 400)).save(file, "PNG")
    chat = Chat((Message("user", (ImagePart(file.getvalue(), "image/png"),)),))
    with EngineHarness(folder) as engine:
        prompt = engine.session.preparer.prepare(GenerateJob("a", chat, max_tokens=1)).prompt
    height, width, _ = prompt.images.placed[0].image.pixels.shape
    assert most / 2 < height * width / 64 <= most < 128
