"""Turbo caches under mlx-lm's own models and generators: which layers, and that nothing else
changes."""

from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm import load
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.models import gemma4
from mlx_lm.models.cache import make_prompt_cache
from tiny_models import make_model

from swiftlm_engine import turboquant
from swiftlm_engine.turboquant.build import NotInstalled
from swiftlm_engine.turboquant.layer_support import decide, head_dim
from swiftlm_engine.turboquant.routing import MaskNotSupported, is_installed

PROMPT = [(7 * i * i + 3 * i) % 300 + 20 for i in range(200)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("models")
    made = {}

    def get(name: str):
        if name not in made:
            made[name] = load(str(make_model(name, folder / name)))[0]
            turboquant.install(made[name])
        return made[name]

    return get


def greedy(model, prompt: list[int], cache: list, count: int = 16) -> list[int]:
    steps = generate_step(
        mx.array(prompt), model, max_tokens=count, prompt_cache=cache, prefill_step_size=64
    )
    return [token for token, _ in steps]


def compressed(made: turboquant.Caches) -> list[int]:
    return [c.num_compressed for c in made.caches if isinstance(c, turboquant.TurboKVCache)]


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("llama", [True, True]),
        ("qwen3_moe", [True, True]),
        ("gemma3_text", [False, True, False, True]),
        ("qwen3_next", [False, True, False, True]),
        ("llama4", [False, False, False, True]),
        ("gpt_oss", [False, False]),
        ("deepseek_v3", [False, False]),
        ("falcon_h1", [False, False]),
        ("mamba2", [False, False]),
    ],
)
def test_only_full_attention_layers_are_compressed(models, name: str, layers: list[bool]):
    model = models(name)
    made = turboquant.make_caches(model, "k4v3")
    assert [isinstance(c, turboquant.TurboKVCache) for c in made.caches] == layers
    assert all(v.reason for v, kept in zip(made.verdict.layers, layers, strict=True) if not kept)
    greedy(model, PROMPT, made.caches, 4)
    assert all(n == 128 for n in compressed(made))


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next", "llama4"])
def test_eight_bit_keys_follow_the_exact_logits(models, name: str):
    model = models(name)
    made, own = turboquant.make_caches(model, "k8v3"), make_prompt_cache(model)
    logits = {}
    for caches in (made.caches, own):
        for at in range(0, 200, 50):
            out = model(mx.array([PROMPT[at : at + 50]]), cache=caches)
            mx.eval(out, [c.state for c in caches])
        logits[id(caches)] = out - mx.logsumexp(out, -1, keepdims=True)
    turbo, exact = logits[id(made.caches)], logits[id(own)]
    assert mx.mean(mx.sum(mx.exp(exact) * (exact - turbo), -1)).item() < 0.05


def test_installing_leaves_other_caches_alone(models):
    model = models("llama")
    assert is_installed(model)
    wanted = greedy(model, PROMPT, make_prompt_cache(model))
    turboquant.install(model)
    assert greedy(model, PROMPT, make_prompt_cache(model)) == wanted


def test_short_prompts_give_the_same_greedy_text_as_exact_kv(models):
    model = models("llama")
    made = turboquant.make_caches(model, "k4v3")
    assert greedy(model, PROMPT[:90], made.caches) == greedy(
        model, PROMPT[:90], make_prompt_cache(model)
    )


def test_prefix_hit_gives_the_text_of_the_miss(models):
    """A cache stored after 128 tokens and continued equals one filled in the same chunks."""
    model = models("llama")
    miss = turboquant.make_caches(model, "k4v3")
    wanted = greedy(model, PROMPT, miss.caches)
    stored = turboquant.make_caches(model, "k4v3")
    for at in (0, 64):
        model(mx.array([PROMPT[at : at + 64]]), cache=stored.caches)
    hit = [turboquant.TurboKVCache.from_state(c.state) for c in stored.caches]
    assert greedy(model, PROMPT[128:], hit) == wanted


def test_batched_generation_equals_rows_alone(models):
    model = models("llama")
    prompts = [PROMPT[:9], PROMPT[:150], PROMPT[:200]]
    alone = [greedy(model, p, turboquant.make_caches(model, "k4v3").caches, 12) for p in prompts]
    batch = BatchGenerator(model, prefill_step_size=64, stop_tokens=[])
    caches = [turboquant.make_caches(model, "k4v3").caches for _ in prompts]
    uids = batch.insert(prompts, [12] * 3, caches=caches)
    texts: dict[int, list[int]] = {uid: [] for uid in uids}
    while any(len(t) < 12 for t in texts.values()):
        for response in batch.next()[1]:
            texts[response.uid].append(response.token)
    batch.close()
    assert [texts[uid] for uid in uids] == alone


def test_rewound_speculation_gives_the_text_without_it(models):
    """Drafted tokens that are trimmed again leave no trace while they fit in the exact zone."""
    model = models("llama")
    plain, spec = (turboquant.make_caches(model, "k4v3").caches for _ in range(2))
    for caches in (plain, spec):
        model(mx.array([PROMPT]), cache=caches)
    token = PROMPT[0]
    for _ in range(40):
        wrong = model(mx.array([[token, 1, 2, 3, 4]]), cache=spec)
        [c.trim(4) for c in spec]
        right = model(mx.array([[token]]), cache=plain)
        assert mx.allclose(wrong[:, 0], right[:, 0], atol=1e-3)
        token = mx.argmax(right[0, -1]).item()


def test_caches_without_installation_are_refused(models, tmp_path: Path, monkeypatch):
    model = models("llama")
    monkeypatch.setattr("swiftlm_engine.turboquant.build.is_installed", lambda model: False)
    with pytest.raises(NotInstalled, match="install"):
        turboquant.make_caches(model, "k4v3")


def test_additive_masks_and_sinks_are_refused(models):
    from mlx_lm.models import llama

    attention = llama.scaled_dot_product_attention
    cache = turboquant.make_caches(models("llama"), "k4v3").caches[0]
    x = mx.zeros((1, 2, 1, 32))
    with pytest.raises(MaskNotSupported):
        attention(x, x, x, cache=cache, scale=1.0, mask=mx.zeros((1, 1)))
    with pytest.raises(MaskNotSupported):
        attention(x, x, x, cache=cache, scale=1.0, mask=None, sinks=mx.zeros((2,)))


CONFIG = {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("extra", "word"),
    [
        ({"kv_lora_rank": 512}, "MLA"),
        ({"model_type": "gpt_oss"}, "sinks"),
        ({"attn_logit_softcapping": 50.0}, "soft-capped"),
        ({"num_kv_shared_layers": 1}, "share"),
        ({"head_dim": 68}, "head size 68"),
        ({"head_dim": 576}, "head size 576"),
        ({"head_dim": 192, "v_head_dim": 128}, "values of 128"),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding"),
        ({"full_attention_interval": 4}, "linear"),
    ],
)
def test_what_cannot_be_compressed_is_named(extra: dict, word: str):
    verdict = decide(CONFIG | extra, "k4v3")
    assert verdict.num_compressed_layers == 0
    assert word in verdict.lines()[0]


def test_full_layers_with_wider_heads_are_compressed_at_their_own_size():
    args = gemma4.ModelArgs(text_config=WIDE_FULL_LAYERS, vocab_size=300)
    model = gemma4.Model(args)
    turboquant.install(model)
    made = turboquant.make_caches(model, "k8v3")
    turbo = [isinstance(c, turboquant.TurboKVCache) for c in made.caches]
    assert turbo == [False, True, False, True]
    tokens = mx.array([[t % 300 for t in PROMPT]])
    for start in range(0, len(PROMPT), 40):
        fed = tokens[:, start : start + 40]
        mx.eval(model(fed, cache=made.caches), [c.state for c in made.caches])
    assert {c.kv.codec.head_dim for c in made.caches if hasattr(c, "kv")} == {64}
    assert compressed(made) == [128, 128]
    exact = model(tokens, cache=make_prompt_cache(model))[0, -1]
    trimmed = model(tokens[:, -1:], cache=_without_last(made.caches))[0, -1]
    assert mx.max(mx.abs(exact - trimmed)).item() < 0.1 * mx.max(mx.abs(exact)).item()


WIDE_FULL_LAYERS = {
    "model_type": "gemma4_text", "hidden_size": 64, "num_hidden_layers": 4,
    "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "global_head_dim": 64, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
    "num_kv_shared_layers": 0, "sliding_window": 256, "sliding_window_pattern": 2,
    "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 300,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip


def _without_last(caches: list) -> list:
    for cache in caches:
        cache.trim(1)
    return caches


@pytest.mark.parametrize(("layers", "full", "heads"), [(30, 5, 2), (60, 10, 4)])
def test_published_gemma_4_keeps_wide_heads_compressed(layers: int, full: int, heads: int):
    text = CONFIG | {
        "model_type": "gemma4_text", "num_hidden_layers": layers, "head_dim": 256,
        "global_head_dim": 512, "num_global_key_value_heads": heads, "num_kv_shared_layers": 0,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * (layers // 6),
    }  # fmt: skip
    config = {"model_type": "gemma4", "text_config": text}
    assert head_dim(config) == 512
    assert decide(config, "k4v3").num_compressed_layers == full


def test_verdict_reads_the_language_part_of_a_nested_config():
    nested = {"model_type": "outer", "text_config": CONFIG | {"head_dim": 72}}
    assert head_dim(nested) == 72
    assert decide(nested, "spec").lines() == ["2 of 2 layers spec"]
