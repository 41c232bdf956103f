"""Thoughts: the tags that families put around them, and whether a chat template knows any."""

from __future__ import annotations

import re

# Families agree on little else; a model is free to use any pair its vocabulary knows.
TAG_PAIRS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|think:start|>", "<|think:end|>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|think|>", "<|end|>"),
)
# Where the tags are put together from pieces, the switch or the channel gives it away.
_SWITCHES = re.compile(
    r"enable_thinking|thinking_(?:mode|option|budget|effort)|reasoning_(?:effort|strength)"
    r"|<\|channel\|>analysis"
)


def knows_thoughts(template: str) -> bool:
    """Whether a model with this chat template thinks before it answers, or can."""
    tagged = any(opener in template for opener, _ in TAG_PAIRS)
    return tagged or _SWITCHES.search(template) is not None
