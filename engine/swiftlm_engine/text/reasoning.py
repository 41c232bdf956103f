"""Reasoning: tells thoughts from answer where a pair of tags marks them.

Thoughts open at the very beginning, or after a call, and end at their own closing tag. A prompt
whose template has opened the tag starts inside. Some models call a tool without closing their
thoughts: where a family says so, the beginning of such a call ends them.
"""

from dataclasses import dataclass
from enum import Enum, auto

from swiftlm_engine.brain.thoughts import TAG_PAIRS
from swiftlm_engine.text.markers import first_marker, held_length


@dataclass(frozen=True, slots=True)
class ThinkTags:
    opener: str
    closer: str


TAGS = tuple(ThinkTags(opener, closer) for opener, closer in TAG_PAIRS)


class Opening(Enum):
    YES = auto()
    NO = auto()
    PERHAPS = auto()  # more text will tell


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of thoughts, whether they are over, and the text behind that is not read yet."""

    text: str
    over: bool
    rest: str


class Thoughts:
    """Where one sequence thinks. The reader asks `opening` where thoughts may begin."""

    def __init__(
        self,
        tags: tuple[ThinkTags, ...] = TAGS,
        inside: ThinkTags | None = None,
        interrupts: tuple[str, ...] = (),
    ) -> None:
        self._tags = tags
        self._open = inside
        self._interrupts = interrupts  # what ends thoughts although they are not closed

    @property
    def are_open(self) -> bool:
        return self._open is not None

    def opening(self, text: str) -> tuple[Opening, str]:
        """Whether thoughts open at the start of the text, white space aside; and what follows."""
        stripped = text.lstrip()
        for tags in self._tags:
            if stripped.startswith(tags.opener):
                self._open = tags
                return Opening.YES, stripped[len(tags.opener) :]
        if any(tags.opener.startswith(stripped) for tags in self._tags):
            return Opening.PERHAPS, text
        return Opening.NO, text

    def read(self, text: str) -> Thought:
        """The thoughts in `text`, up to what may be the beginning of their end."""
        closer = self._open.closer if self._open else ""
        ends = (closer, *self._interrupts)
        found = first_marker(text, ends)
        if found is None:
            safe = len(text) - held_length(text, ends)
            return Thought(text[:safe], False, text[safe:])
        position, marker = found
        self._open = None
        skipped = position + len(marker) if marker == closer else position
        return Thought(text[:position], True, text[skipped:])


def opened_by(prompt_tail: str, tags: tuple[ThinkTags, ...] = TAGS) -> ThinkTags | None:
    """The tag that the end of a prompt has opened and not closed."""
    best: tuple[int, ThinkTags] | None = None
    for pair in tags:
        opener, closer = prompt_tail.rfind(pair.opener), prompt_tail.rfind(pair.closer)
        if opener > closer and (best is None or opener > best[0]):
            best = opener, pair
    return best[1] if best else None
