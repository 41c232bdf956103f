"""Facts of published models, held against numbers worked out by hand in the comments.

Configs are written from public facts (only the keys that count). KV is in 2-byte elements: a token
costs `kv heads x head size x 2 arrays x 2 bytes` in every full layer.
"""

from pathlib import Path
from typing import Any

import pytest
from model_headers import Entry, Quant, decoder, linear, norm, write_model

from swiftlm_engine.brain import facts
from swiftlm_engine.brain.facts import KvFormat, LayerKind, ModelFacts

FULL, SLIDING, MLA, LINEAR = LayerKind.FULL, LayerKind.SLIDING, LayerKind.MLA, LayerKind.LINEAR
Config = dict[str, Any]


def plain(model_type: str, layers: int, hidden: int, heads: int, **more: Any) -> Config:
    return {
        "model_type": model_type, "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "vocab_size": 1000, "intermediate_size": 4 * hidden,
    } | more  # fmt: skip


LLAMA_31_8B = plain(
    "llama", 32, 4096, 32, num_key_value_heads=8, intermediate_size=14336, vocab_size=128256,
    max_position_embeddings=131072, tie_word_embeddings=False,
    rope_scaling={"factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
)  # fmt: skip
MISTRAL_7B = plain(
    "mistral", 32, 4096, 32, num_key_value_heads=8, intermediate_size=14336, vocab_size=32000,
    sliding_window=4096, max_position_embeddings=32768, tie_word_embeddings=False,
)  # fmt: skip
QWEN25_7B = plain(
    "qwen2", 28, 3584, 28, num_key_value_heads=4, intermediate_size=18944, vocab_size=152064,
    max_position_embeddings=32768, use_sliding_window=False, sliding_window=131072,
    tie_word_embeddings=False,
)  # fmt: skip
QWEN3_8B = plain(
    "qwen3", 36, 4096, 32, num_key_value_heads=8, head_dim=128, intermediate_size=12288,
    vocab_size=151936, max_position_embeddings=40960, tie_word_embeddings=False,
)  # fmt: skip
QWEN3_30B_A3B = plain(
    "qwen3_moe", 48, 2048, 32, num_key_value_heads=4, head_dim=128, intermediate_size=6144,
    vocab_size=151936, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
    max_position_embeddings=40960, tie_word_embeddings=False,
)  # fmt: skip
DEEPSEEK_V3 = plain(
    "deepseek_v3", 61, 7168, 128, num_key_value_heads=128, intermediate_size=18432,
    vocab_size=129280, kv_lora_rank=512, q_lora_rank=1536, qk_rope_head_dim=64,
    qk_nope_head_dim=128, v_head_dim=128, n_routed_experts=256, n_shared_experts=1,
    num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=3,
    max_position_embeddings=163840, tie_word_embeddings=False,
    rope_scaling={"factor": 40, "original_max_position_embeddings": 4096, "type": "yarn"},
)  # fmt: skip


def qwen35(model_type: str, layers: int, hidden: int, heads: int, **more: Any) -> Config:
    return {
        "model_type": model_type,
        "text_config": plain(
            model_type + "_text", layers, hidden, heads, head_dim=256, full_attention_interval=4,
            linear_num_key_heads=16, linear_key_head_dim=128, linear_value_head_dim=128,
            linear_conv_kernel_dim=4, max_position_embeddings=262144, **more,
        ),
    }  # fmt: skip


def gemma4(layers: int, hidden: int, heads: int, **more: Any) -> Config:
    text = plain("gemma4_text", layers, hidden, heads, head_dim=256, global_head_dim=512, **more)
    return {"model_type": "gemma4", "text_config": text}


# name: config, layers per kind, KV bytes per token, bytes of one sequence at 4,096 tokens
KV_CASES: dict[str, tuple[Config, dict[LayerKind, int], int, int]] = {
    # 8 x 128 x 2 x 2 = 4,096 in each of 32 layers
    "llama-3.1-8b": (LLAMA_31_8B, {FULL: 32}, 131_072, 131_072 * 4096),
    # mlx-lm gives Mistral 7B v0.1 plain caches: the window of 4,096 is not used
    "mistral-7b-v0.1": (MISTRAL_7B, {FULL: 32}, 131_072, 131_072 * 4096),
    # Nemo: head size 128, not 5120 / 32 = 160; 4,096 in each of 40 layers
    "mistral-nemo": (
        plain("mistral", 40, 5120, 32, num_key_value_heads=8, head_dim=128),
        {FULL: 40}, 163_840, 163_840 * 4096,
    ),
    # no grouping: 32 x 96 x 2 x 2 = 12,288 in each of 32 layers
    "phi-3.5-mini": (
        plain("phi3", 32, 3072, 32, num_key_value_heads=32, sliding_window=262144),
        {FULL: 32}, 393_216, 393_216 * 4096,
    ),
    # 4 x 128 x 2 x 2 = 2,048 in each of 28 layers
    "qwen2.5-7b": (QWEN25_7B, {FULL: 28}, 57_344, 57_344 * 4096),
    # 4,096 in each of 36 layers
    "qwen3-8b": (QWEN3_8B, {FULL: 36}, 147_456, 147_456 * 4096),
    # 2,048 in each of 48 layers
    "qwen3-30b-a3b": (QWEN3_30B_A3B, {FULL: 48}, 98_304, 98_304 * 4096),
    # 10 of 40 layers: 2 x 256 x 2 x 2 = 2,048. State of the other 30: convolution 3 taps of
    # 2 x 16 x 128 + 32 x 128 = 8,192 channels (49,152 B), 32 x 128 x 128 float32 (2,097,152 B)
    "qwen3.6-35b-a3b": (
        qwen35("qwen3_5_moe", 40, 2048, 16, num_key_value_heads=2, linear_num_value_heads=32,
               num_experts=256, num_experts_per_tok=8, moe_intermediate_size=512),
        {LINEAR: 30, FULL: 10}, 20_480, 20_480 * 4096 + 30 * (49_152 + 2_097_152),
    ),
    # 12 of 48 layers: 2,048 each; 36 states with 64 value heads: 3 x (4,096 + 8,192) x 2 = 73,728
    # and 64 x 128 x 128 x 4 = 4,194,304
    "qwen3.5-122b-a10b": (
        qwen35("qwen3_5_moe", 48, 3072, 32, num_key_value_heads=2, linear_num_value_heads=64,
               num_experts=256, num_experts_per_tok=8, moe_intermediate_size=1024),
        {LINEAR: 36, FULL: 12}, 24_576, 24_576 * 4096 + 36 * (73_728 + 4_194_304),
    ),
    # 16 of 64 layers: 4 x 256 x 2 x 2 = 4,096; 48 states with 48 value heads:
    # 3 x (4,096 + 6,144) x 2 = 61,440 and 48 x 128 x 128 x 4 = 3,145,728
    "qwen3.5-27b": (
        qwen35("qwen3_5", 64, 5120, 24, num_key_value_heads=4, linear_num_value_heads=48),
        {LINEAR: 48, FULL: 16}, 65_536, 65_536 * 4096 + 48 * (61_440 + 3_145_728),
    ),
    # layers 6, 12, 18, 24 of 26 are full: 1 x 256 x 2 x 2 = 1,024; 22 windows of 512
    "gemma-3-1b": (
        plain("gemma3_text", 26, 1152, 4, num_key_value_heads=1, head_dim=256, sliding_window=512),
        {SLIDING: 22, FULL: 4}, 4_096, 4_096 * 4096 + 22 * 1_024 * 512,
    ),
    # the published 4B names no head counts: 8 and 4 of 256; 5 of 34 full at 4,096; windows of 1,024
    "gemma-3-4b": (
        {"model_type": "gemma3",
         "text_config": {"model_type": "gemma3_text", "hidden_size": 2560,
                         "intermediate_size": 10240, "num_hidden_layers": 34,
                         "sliding_window": 1024}},
        {SLIDING: 29, FULL: 5}, 20_480, 20_480 * 4096 + 29 * 4_096 * 1024,
    ),
    # 10 of 62 full: 16 x 128 x 2 x 2 = 8,192; 52 windows of 1,024
    "gemma-3-27b": (
        {"model_type": "gemma3",
         "text_config": plain("gemma3_text", 62, 5376, 32, num_key_value_heads=16, head_dim=128,
                              sliding_window=1024)},
        {SLIDING: 52, FULL: 10}, 81_920, 81_920 * 4096 + 52 * 8_192 * 1024,
    ),
    # 20 of 35 layers read another's KV; of the first 15 every 5th is full with heads of 512:
    # 1 x 512 x 2 x 2 = 2,048; 12 windows of 512 with heads of 256 at 1,024
    "gemma-4-e2b": (
        gemma4(35, 1536, 8, num_key_value_heads=1, num_kv_shared_layers=20, sliding_window=512,
               sliding_window_pattern=5),
        {SLIDING: 12, FULL: 3, LayerKind.SHARED: 20}, 6_144, 6_144 * 4096 + 12 * 1_024 * 512,
    ),
    # 18 of 42 shared; of the first 24 every 6th full: 2 x 512 x 2 x 2 = 4,096; 20 windows at 2,048
    "gemma-4-e4b": (
        gemma4(42, 2560, 8, num_key_value_heads=2, num_kv_shared_layers=18, sliding_window=512,
               sliding_window_pattern=6),
        {SLIDING: 20, FULL: 4, LayerKind.SHARED: 18}, 16_384, 16_384 * 4096 + 20 * 2_048 * 512,
    ),
    # k=v saves the projection, not the cache. 5 of 30 full: 2 x 512 x 2 x 2 = 4,096;
    # 25 windows of 1,024: 8 x 256 x 2 x 2 = 8,192
    "gemma-4-26b-a4b": (
        gemma4(30, 2816, 16, num_key_value_heads=8, num_global_key_value_heads=2,
               attention_k_eq_v=True, num_kv_shared_layers=0, sliding_window=1024,
               sliding_window_pattern=6, num_experts=128, top_k_experts=8,
               moe_intermediate_size=704),
        {SLIDING: 25, FULL: 5}, 20_480, 20_480 * 4096 + 25 * 8_192 * 1024,
    ),
    # 10 of 60 full: 4 x 512 x 2 x 2 = 8,192; 50 windows of 1,024: 16 x 256 x 2 x 2 = 16,384
    "gemma-4-31b": (
        gemma4(60, 5376, 32, num_key_value_heads=16, num_global_key_value_heads=4,
               attention_k_eq_v=True, num_kv_shared_layers=0, sliding_window=1024,
               sliding_window_pattern=6),
        {SLIDING: 50, FULL: 10}, 81_920, 81_920 * 4096 + 50 * 16_384 * 1024,
    ),
    # alternating, window of 128: 8 x 64 x 2 x 2 = 2,048 in 12 and 12 layers
    "gpt-oss-20b": (
        plain("gpt_oss", 24, 2880, 64, num_key_value_heads=8, num_local_experts=32,
              num_experts_per_tok=4, intermediate_size=2880, sliding_window=128, head_dim=64),
        {SLIDING: 12, FULL: 12}, 24_576, 24_576 * 4096 + 12 * 2_048 * 128,
    ),
    # latent 512 and rotary 64: 1,152 in each of 61 layers (a naive formula says 25 times as much)
    "deepseek-v3": (DEEPSEEK_V3, {MLA: 61}, 70_272, 70_272 * 4096),
    # 8 x 128 x 2 x 2 = 4,096 in each of 46 layers
    "glm-4.5-air": (
        plain("glm4_moe", 46, 4096, 96, num_key_value_heads=8, head_dim=128, n_routed_experts=128,
              num_experts_per_tok=8, moe_intermediate_size=1408, first_k_dense_replace=1),
        {FULL: 46}, 188_416, 188_416 * 4096,
    ),
    # 1,152 in each of 47 layers
    "glm-4.7-flash": (
        plain("glm4_moe_lite", 47, 2048, 20, num_key_value_heads=20, kv_lora_rank=512,
              qk_rope_head_dim=64, n_routed_experts=64, num_experts_per_tok=4),
        {MLA: 47}, 54_144, 54_144 * 4096,
    ),
    # 7 latent layers at 1,152; 20 KDA states: 3 convolutions of 3 taps and 4,096 channels
    # (73,728 B) and 32 x 128 x 128 float32 (2,097,152 B)
    "kimi-linear-48b": (
        plain("kimi_linear", 27, 2304, 32, num_key_value_heads=32, head_dim=72, kv_lora_rank=512,
              qk_rope_head_dim=64, num_experts=256, num_experts_per_token=8,
              linear_attn_config={
                  "kda_layers": [n for n in range(1, 28) if n not in (4, 8, 12, 16, 20, 24, 27)],
                  "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4}),
        {LINEAR: 20, MLA: 7}, 8_064, 8_064 * 4096 + 20 * (73_728 + 2_097_152),
    ),
    # 12 of 48 layers see everything: 8 x 128 x 2 x 2 = 4,096; 4,096 tokens fit one chunk of 8,192
    "llama-4-scout": (
        {"model_type": "llama4",
         "text_config": plain("llama4_text", 48, 5120, 40, num_key_value_heads=8, head_dim=128,
                              attention_chunk_size=8192, num_local_experts=16,
                              num_experts_per_tok=1)},
        {LayerKind.CHUNKED: 36, FULL: 12}, 49_152, 48 * 4_096 * 4096,
    ),
}  # fmt: skip


def facts_of(tmp_path: Path, config: Config, entries: list[Entry] | None = None) -> ModelFacts:
    """The facts of a config, with only an embedding as weights unless more is given."""
    text = {"vocab_size": 262208} | config | config.get("text_config", {})
    default = linear("model.embed_tokens", text["vocab_size"], text["hidden_size"])
    return facts.read_model(write_model(tmp_path / "model", config, entries or default))


@pytest.mark.parametrize("name", KV_CASES)
def test_layers_and_kv_of_published_models_are_as_worked_out_by_hand(
    name: str, tmp_path: Path
) -> None:
    config, kinds, per_token, at_4096 = KV_CASES[name]
    found = facts_of(tmp_path, config)
    assert found.layer_kinds == kinds
    assert sum(found.kv_bytes_per_token().values()) == per_token
    assert found.kv_bytes(4096) == at_4096
    assert not found.kv_assumed


def test_llama_31_8b_has_the_bytes_of_its_published_index(tmp_path: Path) -> None:
    found = facts_of(tmp_path, LLAMA_31_8B, decoder(LLAMA_31_8B))
    assert found.weights.resident_bytes() == 16_060_522_496
    # all but the embedding's rows: 2 x (8,030,261,248 - 128,256 x 4,096)
    assert found.weights.active_bytes() == 16_060_522_496 - 2 * 128_256 * 4096
    assert found.weights.total_weights == 8_030_261_248
    assert found.max_context == 131_072
    assert found.dtype == "bfloat16"
    assert found.quantisation.default is None


@pytest.mark.parametrize(
    ("config", "total_bytes"),
    [(MISTRAL_7B, 14_483_464_192), (QWEN25_7B, 15_231_233_024), (QWEN3_8B, 16_381_470_720)],
    ids=["mistral-7b", "qwen2.5-7b", "qwen3-8b"],
)
def test_bfloat16_checkpoints_have_their_published_size(
    config: Config, total_bytes: int, tmp_path: Path
) -> None:
    found = facts_of(tmp_path, config, decoder(config))
    assert found.weights.resident_bytes() == total_bytes == found.checkpoint_bytes


def test_qwen3_30b_a3b_in_4_bit_counts_experts_apart(tmp_path: Path) -> None:
    config = QWEN3_30B_A3B | {"quantization": {"group_size": 64, "bits": 4}}
    found = facts_of(tmp_path, config, decoder(config, Quant(4)))
    weights = found.weights
    # 3 x 2,048 x 768 weights at 4.5 bits
    assert found.expert_record_bytes == 2_654_208
    assert weights.part(facts.WeightPart.EXPERTS) == 48 * 128 * 2_654_208  # 16.3 GB
    # per layer: attention 18,874,368 and router (bf16) 262,144 weights; embedding and head
    # 311,164,928 each; norms 2 x 2,048 + 2 x 128 per layer and 2,048 at the end
    dense = 48 * (18_874_368 * 9 // 16 + 2 * (262_144 + 4_352)) + 2 * 2_048
    assert weights.shared_bytes() == dense + 2 * (311_164_928 * 9 // 16)
    assert (
        weights.resident_bytes() == weights.part(facts.WeightPart.EXPERTS) + weights.shared_bytes()
    )
    # 8 of 128 experts: 1.02 GB per token at zero hits
    assert weights.active_bytes() == dense + 311_164_928 * 9 // 16 + 48 * 8 * 2_654_208
    assert (weights.num_experts, weights.experts_per_token) == (128, 8)
    assert found.quantisation.describe() == "4-bit g64"


def test_deepseek_v3_in_4_bit_ignores_the_prediction_layer(tmp_path: Path) -> None:
    config = DEEPSEEK_V3 | {"quantization": {"group_size": 64, "bits": 4}}
    extra = linear("model.layers.61.eh_proj", 7168, 14336, quant=Quant(4))
    found = facts_of(tmp_path, config, decoder(config, Quant(4)) + extra)
    assert found.expert_record_bytes == 24_772_608  # 3 x 7,168 x 2,048 at 4.5 bits
    assert found.weights.part(facts.WeightPart.EXPERTS) == 58 * 256 * 24_772_608  # layers 3 to 60
    assert found.weights.part(facts.WeightPart.UNUSED) == sum(e.nbytes for e in extra)
    assert found.max_context == 163_840
    # 256 experts of 44.0 M weights in 58 layers, and 17.1 B more: 671 B
    assert round(found.weights.total_weights / 1e9) == 671


def test_fp8_checkpoint_is_priced_as_the_bfloat16_it_becomes(tmp_path: Path) -> None:
    config = plain("deepseek_v3", 1, 128, 4, kv_lora_rank=512, qk_rope_head_dim=64)
    entries = [
        *linear("model.embed_tokens", 1000, 128),
        Entry("model.layers.0.mlp.up_proj.weight", "F8_E4M3", (512, 128)),
        Entry("model.layers.0.mlp.up_proj.weight_scale_inv", "F32", (4, 1)),
    ]
    found = facts_of(tmp_path, config, entries)
    assert found.weights.resident_bytes() == 2 * 1000 * 128 + 2 * 512 * 128


def test_gpt_oss_keeps_its_mxfp4_experts_as_published(tmp_path: Path) -> None:
    config = KV_CASES["gpt-oss-20b"][0] | {
        "num_hidden_layers": 2,
        "quantization_config": {"quant_method": "mxfp4"},
    }
    experts = "model.layers.{}.mlp.experts."
    entries = linear("model.embed_tokens", 1000, 2880)
    for i in range(2):
        base = experts.format(i)
        entries += [
            Entry(base + "gate_up_proj_blocks", "U8", (32, 5760, 90, 16)),
            Entry(base + "gate_up_proj_scales", "U8", (32, 5760, 90)),
            Entry(base + "gate_up_proj_bias", "BF16", (32, 5760)),
            Entry(base + "down_proj_blocks", "U8", (32, 2880, 90, 16)),
            Entry(base + "down_proj_scales", "U8", (32, 2880, 90)),
            Entry(base + "down_proj_bias", "BF16", (32, 2880)),
        ]
    found = facts_of(tmp_path, config, entries)
    # 3 x 2,880 x 2,880 weights at 4.25 bits and 3 x 2,880 biases of 2 bytes
    assert found.expert_record_bytes == 3 * 2880 * 2880 * 17 // 32 + 3 * 2880 * 2
    assert found.weights.num_experts == 32
    assert found.weights.part(facts.WeightPart.EXPERTS) == 2 * 32 * found.expert_record_bytes


def test_gemma4_e2b_looks_its_second_embedding_up_and_drops_shared_projections(
    tmp_path: Path,
) -> None:
    config = KV_CASES["gemma-4-e2b"][0]
    base = "language_model.model."
    entries = [
        *linear(base + "embed_tokens", 1000, 1536),
        *linear(base + "embed_tokens_per_layer", 1000, 35 * 256),
        *linear(base + "layers.14.self_attn.k_proj", 512, 1536),
        *linear(base + "layers.15.self_attn.k_proj", 256, 1536),
        *linear("vision_tower.encoder.layers.3.q_proj", 64, 64),
    ]
    found = facts_of(tmp_path, config, entries)
    weights = found.weights
    assert weights.part(facts.WeightPart.UNUSED) == 2 * 256 * 1536
    assert weights.part(facts.WeightPart.VISION) == 2 * 64 * 64
    assert found.vision
    assert weights.resident_bytes() == 2 * (1000 * 1536 + 1000 * 35 * 256 + 512 * 1536)
    # the head is the embedding, the per-layer table gives one row
    assert weights.active_bytes() == 2 * (1000 * 1536 + 512 * 1536)


def test_gemma4_26b_experts_have_the_published_record(tmp_path: Path) -> None:
    config = KV_CASES["gemma-4-26b-a4b"][0] | {"quantization": {"group_size": 64, "bits": 4}}
    base = "language_model.model.layers.0.experts.switch_glu."
    entries = linear("language_model.model.embed_tokens", 1000, 2816, quant=Quant(4))
    for part in ("gate_proj", "up_proj"):
        entries += linear(base + part, 128, 704, 2816, quant=Quant(4))
    entries += linear(base + "down_proj", 128, 2816, 704, quant=Quant(4))
    assert facts_of(tmp_path, config, entries).expert_record_bytes == 3_345_408


def test_per_expert_checkpoint_counts_like_a_stacked_one(tmp_path: Path) -> None:
    config = QWEN3_30B_A3B | {"num_hidden_layers": 1, "num_experts": 4}
    stacked = facts_of(tmp_path / "a", config, decoder(config))
    split = [e for e in decoder(config) if ".switch_mlp." not in e.name]
    for n in range(4):
        base = f"model.layers.0.mlp.experts.{n}."
        split += linear(base + "gate_proj", 768, 2048) + linear(base + "up_proj", 768, 2048)
        split += linear(base + "down_proj", 2048, 768)
    apart = facts_of(tmp_path / "b", config, split)
    assert apart.weights.experts == stacked.weights.experts
    assert apart.expert_record_bytes == 3 * 768 * 2048 * 2


def test_load_in_another_dtype_casts_floats_and_leaves_codes(tmp_path: Path) -> None:
    config = plain("llama", 1, 128, 4, quantization={"group_size": 64, "bits": 4})
    entries = linear("model.embed_tokens", 1000, 128, quant=Quant(4))
    entries.append(norm("model.norm", 128))
    found = facts_of(tmp_path, config, entries)
    codes, scales = 1000 * 128 // 2, 2 * 1000 * 2
    assert found.weights.resident_bytes() == codes + 2 * (scales + 128)
    assert found.weights.resident_bytes(found.cast_itemsize("float32")) == codes + 4 * (
        scales + 128
    )
    assert found.kv_bytes(256, dtype="float32") == 2 * found.kv_bytes(256)


def test_turbo_bytes_per_token_are_those_of_the_records(tmp_path: Path) -> None:
    found = facts_of(tmp_path, LLAMA_31_8B)
    # head size 128: key 64 + 2, value 48 + 2, and 256 B of mean per 512 tokens = 116.5 B;
    # 8 heads, 32 layers
    assert sum(found.kv_bytes_per_token(KvFormat.K4V3).values()) == 116.5 * 8 * 32
    assert sum(found.kv_bytes_per_token(KvFormat.SPEC).values()) == 118.5 * 8 * 32
    assert sum(found.kv_bytes_per_token(KvFormat.K4V4).values()) == 132.5 * 8 * 32
    assert sum(found.kv_bytes_per_token(KvFormat.K8V3).values()) == 180.5 * 8 * 32
    at_32k = found.kv_bytes(32768, kv=KvFormat.K4V3) / found.kv_bytes(32768)
    assert at_32k <= 0.24


def test_turbo_leaves_windows_sinks_and_latents_alone(tmp_path: Path) -> None:
    cases = {"gpt-oss-20b": 0, "deepseek-v3": 0, "gemma-3-1b": 4, "qwen3.6-35b-a3b": 10}
    for name, compressed in cases.items():
        found = facts_of(tmp_path / name, KV_CASES[name][0])
        assert found.compressed_layers(KvFormat.K4V3) == compressed
        stores = [store for layer in found.layers for store in layer.stores]
        assert sum(bool(s.turbo_blocker) for s in stores) == len(stores) - compressed
