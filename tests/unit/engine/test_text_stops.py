"""Promises of the stop matcher: cut exactly, hold back only what may match, in any chunking."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from swiftlm_engine.text.stops import StopMatcher

# Few letters, so that stop strings overlap and repeat inside themselves.
letters = st.text("ab", min_size=1, max_size=5)


def chunked(draw: st.DrawFn) -> tuple[str, list[str]]:
    text = draw(st.text("abc", max_size=30))
    cuts = sorted(draw(st.sets(st.integers(0, len(text)))) | {0, len(text)})
    return text, [text[a:b] for a, b in itertools.pairwise(cuts)]


def run(stops: list[str], chunks: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = "".join(map(matcher.push, chunks))
    return shown + matcher.flush(), matcher.matched


def reference(stops: list[str], text: str) -> tuple[str, str | None]:
    """The match that ends first; of those, the longest."""
    found = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end - len(stop)], stop


@given(st.lists(letters, min_size=1, max_size=4), st.composite(chunked)())
def test_every_chunking_gives_the_text_before_the_first_stop(
    stops: list[str], text_and_chunks: tuple[str, list[str]]
) -> None:
    text, chunks = text_and_chunks
    assert run(stops, chunks) == reference(stops, text)


@given(st.lists(letters, min_size=1, max_size=4), st.text("abc", max_size=30))
def test_only_a_possible_beginning_of_a_stop_is_held_back(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for i, char in enumerate(text):
        shown += matcher.push(char)
        if matcher.matched is not None:
            return
        held = text[len(shown) : i + 1]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_nothing_is_shown_after_a_match() -> None:
    matcher = StopMatcher(["stop"])
    assert matcher.push("a st") == "a "
    assert matcher.push("op more") == ""
    assert matcher.push("more") + matcher.flush() == ""
    assert matcher.matched == "stop"


def test_without_stops_text_passes_at_once() -> None:
    matcher = StopMatcher(["", ""])
    assert matcher.push("abc") == "abc"


def test_a_held_beginning_that_came_to_nothing_is_shown_at_the_end() -> None:
    assert run(["\n\nUser:"], ["hello\n\nUse"]) == ("hello\n\nUse", None)
