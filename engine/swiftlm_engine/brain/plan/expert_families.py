"""Model types whose experts can be read one by one; any other streams whole layers at best."""

from swiftlm_engine.brain.facts import ModelFacts

# Their experts are a plain SwitchGLU that takes its weights as they lie in the file.
EXPERT_FAMILIES = frozenset(
    {
        "Klear",
        "bailing_moe",
        "deepseek",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "dots1",
        "ernie4_5_moe",
        "exaone_moe",
        "gemma4",
        "gemma4_text",
        "glm4_moe",
        "glm4_moe_lite",
        "gpt_oss",
        "granitemoe",
        "hunyuan",
        "kimi_linear",
        "lfm2_moe",
        "llama4",
        "llama4_text",
        "mimo_v2_flash",
        "minimax",
        "mixtral",
        "olmoe",
        "phimoe",
        "qwen2_moe",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_vl_moe",
        "qwen3_vl_moe_text",
    }
)


def streams_experts(facts: ModelFacts) -> bool:
    return facts.moe and facts.model_type in EXPERT_FAMILIES
