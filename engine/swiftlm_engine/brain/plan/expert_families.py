"""Model types whose experts can be read one by one; any other streams whole layers at best."""

from swiftlm_engine.brain.facts import ModelFacts

# Their experts are a plain SwitchGLU that takes its weights as they lie in the file.
EXPERT_FAMILIES = frozenset(
    {
        "qwen2_moe",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "gemma4",
        "gemma4_text",
        "mixtral",
        "olmoe",
        "gpt_oss",
        "deepseek",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "glm4_moe",
        "glm4_moe_lite",
        "lfm2_moe",
    }
)


def streams_experts(facts: ModelFacts) -> bool:
    return facts.moe and facts.model_type in EXPERT_FAMILIES
