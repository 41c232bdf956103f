"""Answers about images: equal to mlx-vlm's, and the same alone, batched, chunked and cached."""

from __future__ import annotations

import json
from dataclasses import replace

import mlx.core as mx
import pytest
from engine_harness import Answer, EngineHarness
from mlx_vlm_reference import MlxVlm
from tiny_models import make_model
from tiny_vision import CONFIGS, make_vision_model, mark, picture

from swiftlm_engine.brain import vision
from swiftlm_engine.messages import EndReason, EngineFault, FaultKind, GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.text.chat import Chat, ImagePart, Message, TextPart

GREEDY = SamplingSettings(temperature=0.0)
NUM_TOKENS = 12
RED, BLUE, WIDE = picture(1), picture(2), picture(3, (96, 24))
SEVERAL = ((RED,), (BLUE,), (RED, BLUE), (BLUE, RED), (WIDE, RED, WIDE))
CACHE = {"prefix_cache_bytes": 64 << 20}


def chat(*pictures: bytes, text: str = "what is this") -> Chat:
    images = (ImagePart(content, "image/png") for content in pictures)
    return Chat((Message("user", (*images, TextPart(text))),))


def job(name: str, prompt: Chat, **options: object) -> GenerateJob:
    options.setdefault("sampling", GREEDY)
    options.setdefault("max_tokens", NUM_TOKENS)
    return GenerateJob(name, prompt, ignore_eos=True, return_token_ids=True, **options)


def ids_of(answer: Answer) -> list[int]:
    return [token_id for delta in answer.deltas for token_id in delta.token_ids]


def refusal(engine: EngineHarness, *pictures: bytes, text: str = "what is this") -> EngineFault:
    with pytest.raises(EngineFault) as caught:
        engine.submit(job("refused", chat(*pictures, text=text)))
    return caught.value


# The other ones of a pair differ in a tower's blocks, or in experts of the language model.
SELDOM = ("pixtral", "qwen2_vl", "qwen3_vl_moe")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.slow if name in SELDOM else ()) for name in CONFIGS
    ],
)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def folder(name, tmp_path_factory):
    return make_vision_model(name, tmp_path_factory.mktemp(name))


# One of each kind: a sliding window, plain KV, positions with rows and columns, a hybrid.
KINDS = pytest.mark.parametrize(
    "name", ["gemma3", "mistral3", "qwen3_vl", "qwen3_5"], indirect=True, scope="module"
)


@pytest.fixture(scope="module")
def mistral(tmp_path_factory):
    return make_vision_model("mistral3", tmp_path_factory.mktemp("mistral"))


@pytest.fixture(scope="module")
def expected(name, folder):
    reference = MlxVlm(name, folder)
    answers = []
    for pictures in SEVERAL:
        marks = mark(name) * len(pictures)
        text = f"<|im_start|>user\n{marks}what is this<|im_end|>\n<|im_start|>assistant\n"
        answers.append(reference.greedy(text, pictures, NUM_TOKENS))
    return answers


def test_text_about_images_equals_that_of_mlx_vlm(folder, expected):
    assert len({tuple(ids) for ids in expected}) == len(SEVERAL)
    with EngineHarness(folder) as engine:
        for i, pictures in enumerate(SEVERAL):
            (answer,) = engine.run(job(f"r{i}", chat(*pictures)))
            assert ids_of(answer) == expected[i]
        assert engine.session.facts.vision


@KINDS
def test_text_about_images_in_a_batch_equals_text_alone(folder, expected):
    with EngineHarness(folder) as engine:
        text_only = job("text", chat(text="hello world"))
        (alone,) = engine.run(text_only)
        jobs = [job(f"r{i}", chat(*pictures)) for i, pictures in enumerate(SEVERAL)]
        *answers, text = engine.run(*jobs, text_only)
        assert [ids_of(answer) for answer in answers] == expected
        assert ids_of(text) == ids_of(alone)


@KINDS
def test_images_cut_by_chunks_of_prefill_give_the_same_text(folder, expected):
    with EngineHarness(folder, prefill_chunk=5) as engine:
        answers = engine.run(*(job(f"r{i}", chat(*p)) for i, p in enumerate(SEVERAL)))
        assert [ids_of(answer) for answer in answers] == expected


@KINDS
def test_the_same_picture_hits_the_prefix_cache_and_another_one_misses(folder, expected):
    with EngineHarness(folder, **CACHE) as engine:
        reader = engine.session.runner.images
        (cold,) = engine.run(job("cold", chat(RED, BLUE)))
        (hit,) = engine.run(job("hit", chat(RED, BLUE)))
        (other,) = engine.run(job("other", chat(BLUE, RED)))
    assert ids_of(hit) == ids_of(cold) == expected[2]
    assert ids_of(other) == expected[3]
    assert hit.started.cached_tokens > hit.started.prompt_tokens - 6
    assert other.started.cached_tokens < 10  # what stands before the first picture
    assert reader.num_encoded == 2


def test_a_conversation_reuses_the_pictures_before_the_one_that_changed(mistral):
    with EngineHarness(mistral, **CACHE) as engine:
        engine.run(job("first", chat(RED, BLUE)))
        (second,) = engine.run(job("second", chat(RED, WIDE)))
        red, wide = engine.session.preparer.prepare(job("", chat(RED, WIDE))).prompt.images.placed
    assert red.positions[-1] < second.started.cached_tokens <= wide.positions[0]


def test_pictures_are_told_apart_in_the_tier_on_disk_too(mistral, tmp_path):
    disk = {"prefix_cache_dir": tmp_path, "prefix_cache_dir_bytes": 1 << 30, **CACHE}
    long = "the quick brown fox jumps over the lazy dog " * 24
    with EngineHarness(mistral, **disk) as engine:
        (first,) = engine.run(job("first", chat(RED, text=long)))
    with EngineHarness(mistral, **disk) as engine:
        (other,) = engine.run(job("other", chat(BLUE, text=long)))
        (same,) = engine.run(job("same", chat(RED, text=long)))
    assert other.started.cached_tokens < 10
    assert "ssd" in same.started.cache_note
    assert same.started.cached_tokens > 200
    assert ids_of(same) == ids_of(first) != ids_of(other)


def test_choices_of_one_request_share_the_encoded_image(mistral):
    with EngineHarness(mistral) as engine:
        engine.submit(job("two", chat(RED), n=2))
        answers = engine.collect(2)
        assert ids_of(answers["two", 0]) == ids_of(answers["two", 1])
        assert engine.session.runner.images.num_encoded == 1


def test_an_aborted_request_leaves_no_image_behind(mistral):
    with EngineHarness(mistral) as engine:
        engine.submit(job("left", chat(RED, BLUE), max_tokens=300))
        assert engine.abort("left")
        answer = engine.collect(1)["left", 0]
        assert answer.finished.reason is EndReason.ABORT
        assert engine.mlx.call(lambda: engine.session.runner.num_open).result(5) == 0
        assert not engine.session.runner._prompt_images


@pytest.mark.parametrize("cache_bytes", [0, 32 << 20])
def test_a_preempted_sequence_goes_on_from_its_images(tmp_path, cache_bytes):
    folder = make_vision_model("qwen3_vl", tmp_path)
    jobs = [job(f"r{i}", chat(picture(i)), max_tokens=40) for i in range(4)]
    with EngineHarness(folder) as engine:
        free = [ids_of(answer) for answer in engine.run(*jobs)]
    with EngineHarness(folder, kv_budget_bytes=130, prefix_cache_bytes=cache_bytes) as engine:
        scheduler, runner = engine.session.engine.scheduler, engine.session.runner
        scheduler.limits = replace(scheduler.limits, reserve_tokens=8)
        scheduler._price = lambda prompt, new: prompt + new  # real caches grow by 256 tokens
        preempted, preempt = [], runner.preempt
        runner.preempt = lambda s: (preempted.append(s.key), preempt(s))
        assert [ids_of(answer) for answer in engine.run(*jobs)] == free
        assert preempted


def test_image_tokens_count_against_the_context(mistral):
    with EngineHarness(mistral, context=40) as engine:
        (answer,) = engine.run(job("fits", chat(RED), max_tokens=2))
        assert answer.started.prompt_tokens > 20
        fault = refusal(engine, RED, BLUE, WIDE)
    assert fault.kind is FaultKind.CONTEXT_TOO_LONG


def test_a_mark_in_the_text_is_not_taken_for_an_image(mistral):
    with EngineHarness(mistral) as engine:
        fault = refusal(engine, RED, text="see [IMG]")
        assert fault.kind is FaultKind.INVALID
        assert "take '[IMG]' out of the text" in fault.message
        (answer,) = engine.run(job("text", chat(text="see [IMG]")))  # no images: plain tokens
        assert answer.finished.reason is EndReason.LENGTH


def test_an_image_that_cannot_be_used_is_refused_by_its_number(mistral):
    with EngineHarness(mistral) as engine:
        fault = refusal(engine, RED, BLUE[:60])
    assert fault.kind is FaultKind.INVALID
    assert fault.message.startswith("image 2 of 2: it cannot be decoded")


def test_a_model_whose_image_tokens_see_each_other_is_served_as_text(tmp_path):
    folder = make_vision_model("gemma4", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["use_bidirectional_attention"] = "vision"
    (folder / "config.json").write_text(json.dumps(config))
    with EngineHarness(folder) as engine:
        fault = refusal(engine, RED)
        assert not engine.session.facts.vision
    assert "the tokens of a picture see each other in it" in fault.message


def test_a_template_that_only_a_processor_would_find_is_used(tmp_path):
    folder = make_vision_model("mistral3", tmp_path)
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    with EngineHarness(folder) as engine:
        (answer,) = engine.run(job("seen", chat(RED)))
    assert answer.finished.reason is EndReason.LENGTH


def test_a_broken_tower_costs_a_model_its_images_and_not_its_text(tmp_path):
    folder = make_vision_model("mistral3", tmp_path)
    weights = dict(mx.load(str(folder / "model-vision.safetensors")))
    del weights["vision_tower.vision_model.ln_pre.weight"]
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model-vision.safetensors"), weights)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    del index["weight_map"]["vision_tower.vision_model.ln_pre.weight"]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with EngineHarness(folder) as engine:
        (answer,) = engine.run(job("text", chat()))
        assert answer.finished.reason is EndReason.LENGTH
        fault = refusal(engine, RED)
    assert "its image tower is broken" in fault.message
    assert "ln_pre.weight" in fault.message


def test_a_text_model_refuses_images_by_name(tmp_path):
    with EngineHarness(make_model("llama", tmp_path)) as engine:
        fault = refusal(engine, RED)
        assert not engine.session.facts.vision
    assert fault.kind is FaultKind.UNSUPPORTED
    assert fault.message.startswith("model 'tiny' reads text only; remove the image, or ask")


def test_a_vision_model_without_the_extra_is_served_as_text(mistral, monkeypatch):
    monkeypatch.setattr(vision, "is_installed", lambda: False)
    with EngineHarness(mistral) as engine:
        (answer,) = engine.run(job("text", chat()))
        assert answer.finished.reason is EndReason.LENGTH
        fault = refusal(engine, RED)
        assert not engine.session.facts.vision
        assert fault.message in engine.session.facts.notes
    assert "pip install --no-deps 'mlx-vlm" in fault.message
    assert "swiftlmctl unload tiny" in fault.message
