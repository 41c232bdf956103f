"""The parser fixtures of `canitoolcall`, whole and in pieces, against its own checks."""

import json

import pytest
from canitoolcall.checks import case_status, run_checks
from canitoolcall.fixtures import load_families
from canitoolcall.results import Observation, ParsedToolCall, ParseResult, Status
from parser_fixtures import Answer, Case, cases, parse, pieces_of

from swiftlm_engine.text.events import TextFinish

CASES = cases()
FAMILIES = load_families()


def result(answer: Answer) -> ParseResult:
    calls = tuple(ParsedToolCall(name, arguments) for _, name, arguments in answer.calls)
    return ParseResult(answer.content or None, answer.reasoning or None, calls)


def observe(case: Case) -> Observation:
    whole = parse(case, [case.marked_text], stream_arguments=False)[0]
    chunkings = {f"rand:{n}:8": pieces_of(case.marked_text, 8, n) for n in (1, 2)}
    chunkings["token"] = pieces_of(case.marked_text, 1)
    streams = {k: result(parse(case, v, stream_arguments=False)[0]) for k, v in chunkings.items()}
    return Observation(result(whole), streams)


def test_all_fixtures_are_here() -> None:
    assert len(CASES) == 469


@pytest.mark.parametrize("name", CASES)
def test_the_fixture_parses_as_it_should(name: str) -> None:
    case = CASES[name]
    rows = run_checks(case.fixture, FAMILIES[case.fixture.family], observe(case))
    worst = case_status(rows)
    failures = [r for r in rows if r.status is worst]
    assert worst in (Status.PASS, Status.SOFT_PASS), failures[:3]


def visible(answer: Answer) -> tuple[str, str, list[list[str]]]:
    """Without the ids, which are random unless the model wrote them."""
    return answer.content, answer.reasoning, [call[1:] for call in answer.calls]


@pytest.mark.parametrize("name", CASES)
def test_streamed_arguments_do_not_depend_on_the_pieces(name: str) -> None:
    case = CASES[name]
    whole = visible(parse(case, [case.marked_text])[0])
    for longest, seed in ((2, 0), (20, 1)):
        pieces = pieces_of(case.marked_text, longest, seed)
        assert visible(parse(case, pieces)[0]) == whole


@pytest.mark.parametrize("name", CASES)
def test_streamed_calls_are_the_buffered_calls_and_at_most_the_start_of_one_more(name: str) -> None:
    case = CASES[name]
    buffered, reason = parse(case, [case.marked_text], stream_arguments=False)
    streamed, streamed_reason = parse(case, [case.marked_text])
    assert visible(streamed)[2][: len(buffered.calls)] == visible(buffered)[2]
    more = streamed.calls[len(buffered.calls) :]
    assert len(more) <= 1
    if not more:
        assert (visible(streamed), streamed_reason) == (visible(buffered), reason)
        return
    # Unreadable, but part of it is out: it is completed.
    assert isinstance(json.loads(more[0][2]), dict)
    if case.fixture.truncated:
        assert (streamed.content, streamed_reason) == (buffered.content, reason)
    else:
        assert streamed_reason is TextFinish.TOOL_CALLS
