"""Which models can be spread over how many hosts, and what stands in the way of the others."""

from swiftlm_engine.brain.facts import LayerKind, ModelFacts

# Those whose mlx-lm module has `shard` (a test compares), and the names that share such a module.
TENSOR_FAMILIES = frozenset(
    {
        "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v41", "deepseek_v41_text",
        "exaone_moe", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "iquestcoder",
        "iquestloopcoder", "joyai_llm_flash", "kimi_k2", "kimi_k25", "kimi_k3", "llama",
        "longcat_flash", "longcat_flash_ngram", "minimax", "minimax_m2", "minimax_m3_vl",
        "ministral3", "mistral", "mistral4", "muse_spark", "qwen2", "qwen3", "qwen3_5",
        "qwen3_5_moe", "qwen3_moe", "step3p5", "xverse",
    }
)  # fmt: skip


def tensor_obstacle(facts: ModelFacts, parts: int) -> str:
    """Why the layers cannot be cut into so many parts; empty where they can."""
    if facts.outer_type not in TENSOR_FAMILIES:
        return f"mlx-lm cannot cut the layers of family {facts.outer_type}"
    heads, kv_heads = facts.shape.num_attention_heads, facts.shape.num_kv_heads
    latent = LayerKind.MLA in facts.layer_kinds
    for name, count in (("attention", heads), ("key-value", heads if latent else kv_heads)):
        if count % parts:
            return f"{count} {name} heads do not divide by {parts}"
    return next(filter(None, (width.obstacle(parts) for width in facts.cut_widths)), "")


def pipeline_obstacle(facts: ModelFacts, hosts: int) -> str:
    """Why no range of layers can be held apart; empty where it can."""
    if hosts > len(facts.layers):
        return f"{len(facts.layers)} layers are too few for {hosts} hosts"
    if LayerKind.SHARED in facts.layer_kinds:
        return f"layers of family {facts.outer_type} share their KV with others"
    if len(facts.layers) != len(facts.weights.layers):
        return f"layers of family {facts.outer_type} do not have one cache each"
    return ""
