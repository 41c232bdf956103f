"""Thinking: by which variables a template is told to think, not to, or how much.

Templates agree on no name and on no value. So the names are taken from the template's own text,
the values from what it compares them with, and what they do from what it then draws: a variable
that changes nothing is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swiftlm_engine.text.reasoning import TAGS

Draw = Callable[[Mapping[str, object]], str | None]  # None: the template refuses that value

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
# Tokens of thoughts where the template knows no effort; more than that is the model's own choice.
BUDGETS = {"minimal": 256, "low": 1024}

_NAME = re.compile(r"(?<![.\w'\"\[])([A-Za-z_]*(?:think|reason)[A-Za-z_]*)\b(?!\s*[(\[])", re.I)
# These say what becomes of thoughts in the history.
_HISTORY = re.compile(r"clear|keep|preserve|drop|truncat|history|past|include|render|content|text")
_INVERTED = re.compile(r"^(skip|disable|no|without|suppress)_")
_LEVELLED = re.compile(r"effort|strength|level")
_OFF_WORDS = frozenset(
    {"off", "none", "no", "false", "disabled", "disable", "no_think", "nothink", "/no_think"}
    | {"no_thinking", "chat", "never"}
)
_ON_WORDS = frozenset({"on", "yes", "true", "enabled", "enable", "think", "/think", "thinking"})
_USUAL = ("enable_thinking", "thinking")


@dataclass(frozen=True, slots=True)
class Switch:
    """One variable, and what switches thoughts off and on by it."""

    name: str
    off: object
    on: object  # None: leave it out


@dataclass(frozen=True, slots=True)
class ThinkingSwitches:
    """What one template understands. Without `switches` thoughts are closed by a budget."""

    switches: tuple[Switch, ...] = ()
    effort: str = ""  # the variable that takes one of `levels`
    levels: Mapping[str, str] = field(default_factory=dict)  # ours to the template's
    budget: str = ""  # the variable that takes a number of tokens

    def variables(
        self, enabled: bool | None, effort: str | None, budget: int | None
    ) -> dict[str, object]:
        """What the template is given; nothing for what it does not know."""
        found: dict[str, object] = {}
        if enabled is not None:
            for switch in self.switches:
                value = switch.on if enabled else switch.off
                if value is not None:
                    found[switch.name] = value
        if enabled is not False:
            if self.effort and effort is not None and effort in self.levels:
                found[self.effort] = self.levels[effort]
            if self.budget and budget is not None:
                found[self.budget] = budget
        elif self.effort and not self.switches and self.levels:
            found[self.effort] = self.levels["minimal"]  # the least that it knows
        return found

    def implied_budget(self, enabled: bool | None, effort: str | None) -> int | None:
        """Tokens of thoughts that stand in for what the template has no word for."""
        if enabled is False:
            return None if self.switches else 0
        return None if self.effort or effort is None else BUDGETS.get(effort)


def find_switches(source: str, draw: Draw, levels: tuple[str, ...] = ()) -> ThinkingSwitches:
    """`levels`: those that the model was trained on, where its template does not say."""
    names = sorted(set(_NAME.findall(source)), key=lambda n: (n not in _USUAL, n))
    names = [name for name in names if not _HISTORY.search(name.lower())]
    switches, effort, budget = [], "", ""
    mapped: dict[str, str] = {}
    for name in names:
        if "budget" in name:
            budget = name if _differ(draw, name, 512, None) else budget
            if budget and _differ(draw, name, 0, None):
                switches.append(Switch(name, 0, None))
        else:
            switch = _switch(source, draw, name)
            if switch is not None:
                switches.append(switch)
        if _LEVELLED.search(name) and not effort:
            # A template may look at the effort only where it thinks.
            others = [s for s in switches if s.name != name and s.on is not None]
            mapped = _levels(source, _with(draw, {s.name: s.on for s in others}), name, levels)
            effort = name if mapped else ""
    return ThinkingSwitches(tuple(switches), effort, mapped, budget)


def _with(draw: Draw, more: Mapping[str, object]) -> Draw:
    return lambda given: draw({**more, **given})


def _differ(draw: Draw, name: str, one: object, other: object) -> bool:
    """Whether the template takes both values and draws something else; None = left out."""
    first, second = _drawn(draw, name, one), _drawn(draw, name, other)
    return first is not None and second is not None and first != second


def _drawn(draw: Draw, name: str, value: object) -> str | None:
    return draw({} if value is None else {name: value})


def _switch(source: str, draw: Draw, name: str) -> Switch | None:
    inverted = bool(_INVERTED.match(name.lower()))
    if not _LEVELLED.search(name) and _differ(draw, name, inverted, not inverted):
        return Switch(name, inverted, not inverted)
    words = _words(source, name)
    off = [word for word in words if word.lower() in _OFF_WORDS]
    on = [word for word in words if word.lower() in _ON_WORDS] + [
        word for word in EFFORTS[::-1] if word in words
    ]
    for one in off:
        for other in (*on, None):
            if _differ(draw, name, one, other):
                return Switch(name, one, other)
    return _closing_level(draw, name, words)


def _closing_level(draw: Draw, name: str, words: list[str]) -> Switch | None:
    """An effort so low that the template closes the thoughts by itself."""
    usual = draw({})
    if not _LEVELLED.search(name) or usual is None or _is_closed(usual):
        return None
    for word in (word for word in EFFORTS if word in words):
        drawn = _drawn(draw, name, word)
        if drawn is not None and _is_closed(drawn):
            return Switch(name, word, None)
    return None


def _is_closed(prompt: str) -> bool:
    tail = prompt.rstrip()
    return any(tail.endswith(tags.closer) for tags in TAGS)


def _words(source: str, name: str) -> list[str]:
    """The texts that the template compares a variable with, or sets it to."""
    word, quoted = r"['\"]([\w/-]{1,24})['\"]", re.escape(name)
    found = re.findall(rf"\b{quoted}\s*(?:\|\s*lower\s*)?[!=]=\s*{word}", source)
    found += re.findall(rf"\bset\s+{quoted}\s*=\s*{word}", source)
    found += re.findall(rf"\b{quoted}\b[^%}}\n]*?\belse\s+{word}", source)
    found += re.findall(rf"\b{quoted}\s*\|\s*default\(\s*{word}", source)
    for listed in re.findall(rf"\b{quoted}\s+(?:not\s+)?in\s+[\[(]([^\])]*)[\])]", source):
        found += re.findall(word, listed)
    return list(dict.fromkeys(found))


def _levels(source: str, draw: Draw, name: str, trained: tuple[str, ...]) -> dict[str, str]:
    """Each of our efforts as the nearest that the template takes; a tie goes to the higher one."""
    if not any(_differ(draw, name, one, None) for one in (*EFFORTS, *_words(source, name))):
        return {}
    named = [word for word in _words(source, name) if word in EFFORTS]
    known = list(trained) if trained else named if len(named) > 1 else []
    takes = [level for level in EFFORTS if _drawn(draw, name, level) is not None]
    allowed = [level for level in takes if level in known] or takes
    if not allowed:
        return {}
    return {level: _nearest(level, allowed) for level in EFFORTS}


def _nearest(level: str, allowed: list[str]) -> str:
    place = EFFORTS.index(level)
    ranked = ((abs(EFFORTS.index(a) - place), -EFFORTS.index(a), a) for a in allowed)
    return min(ranked)[2]
