"""Whether a model's experts can be read one by one; any other streams whole layers at best."""

from swiftlm_engine.brain.facts import ModelFacts
from swiftlm_engine.brain.facts.expert_layout import EXPERT_MODULES


def streams_experts(facts: ModelFacts) -> bool:
    known = facts.moe and facts.model_type in EXPERT_MODULES
    return known and not facts.weights.unreadable_expert
