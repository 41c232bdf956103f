"""Speculation is judged by the clock, and what does not pay is switched off and seldom tried."""

from __future__ import annotations

import random

import pytest

from swiftlm_engine.speculation.depth import DraftDepth
from swiftlm_engine.speculation.payoff import Payoff

PLAIN_S = 0.01


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def run(num_tokens: int, tokens_per_pass: float, pass_s: float, payoff: Payoff) -> tuple[int, int]:
    """Decodes with a drafter that always has a guess: (checked passes, plain steps)."""
    checked = plain = 0
    done = 0.0
    while done < num_tokens:
        if payoff.worth_trying:
            payoff.checked_step(tokens_per_pass, pass_s)
            checked, done = checked + 1, done + tokens_per_pass
        else:
            payoff.plain_step(1, PLAIN_S)
            plain, done = plain + 1, done + 1
    return checked, plain


@pytest.mark.parametrize("pass_s", [PLAIN_S * 1.2, PLAIN_S * 3, PLAIN_S * 11])
def test_draft_that_never_holds_is_switched_off_within_a_trial(pass_s):
    payoff = Payoff(Clock())
    checked, _ = run(50, 1, pass_s, payoff)
    assert not payoff.worth_trying
    assert checked <= 12
    more, plain = run(20_000, 1, pass_s, payoff)
    # What trials cost is less than a twentieth of the time.
    assert more * pass_s < 0.05 * plain * PLAIN_S


def test_draft_that_holds_goes_on_and_is_compared_with_plain_steps_now_and_then():
    payoff = Payoff(Clock())
    checked, plain = run(4000, 4, PLAIN_S * 1.5, payoff)
    assert 4 < plain < checked * 0.05
    assert checked > 900


def test_draft_that_stops_to_hold_is_switched_off_and_found_again():
    payoff = Payoff(Clock())
    run(2000, 4, PLAIN_S * 1.5, payoff)
    checked, plain = run(2000, 1, PLAIN_S * 1.5, payoff)
    assert checked < 0.05 * plain
    checked, plain = run(8000, 4, PLAIN_S * 1.5, payoff)
    assert 4 * checked > plain  # most tokens


@pytest.mark.parametrize("idle_s", [PLAIN_S, PLAIN_S * 1.03, PLAIN_S * 1.1, PLAIN_S * 1.3])
def test_looking_for_drafts_in_a_text_that_has_none_costs_next_to_nothing(idle_s):
    payoff, seconds, looked = Payoff(Clock()), 0.0, 0
    for _ in range(10_000):
        if payoff.worth_trying:
            payoff.idle_step(1, idle_s)
            looked += 1
        else:
            payoff.plain_step(1, PLAIN_S)
        seconds += idle_s if payoff.worth_trying else PLAIN_S
    assert 0.97 * seconds <= 10_000 * PLAIN_S
    assert looked > 300  # it goes on looking now and then
    assert looked > 9_000 or idle_s > PLAIN_S


@pytest.mark.parametrize(
    ("acceptance", "token_share", "least", "most"),
    [
        (0.95, 0.02, 8, 8),  # tokens cost nothing and nearly all hold
        (0.8, 0.3, 1, 4),  # tokens cost a third of a pass each
        (0.3, 0.1, 1, 2),
        (0.05, 0.1, 1, 1),
    ],
)
def test_drafts_are_as_long_as_pays_by_what_held_and_what_passes_took(
    acceptance, token_share, least, most
):
    depth, dice = DraftDepth(8), random.Random(1)
    depth.took(1, PLAIN_S)
    drafted = []
    for _ in range(300):
        count = depth.best()
        drafted.append(count)
        held = next((at for at in range(count) if dice.random() > acceptance), count)
        depth.checked(count, held)
        noise = 1 + 0.05 * dice.random()
        depth.took(count + 1, noise * PLAIN_S * (1 + token_share * count))
    usual = sorted(drafted[50:])[125]
    assert least <= usual <= most


def test_a_draft_is_as_long_as_it_may_be_until_something_is_known():
    depth = DraftDepth(6)
    assert depth.best() == 6
    for _ in range(4):
        depth.checked(6, 0)
    assert depth.best() == 6  # nothing is known of what passes take
    depth.took(1, PLAIN_S)
    depth.took(7, PLAIN_S * 1.5)
    assert depth.best() < 6


def test_lengths_come_back_when_drafts_hold_again():
    depth = DraftDepth(8)
    depth.took(1, PLAIN_S)
    for _ in range(50):
        count = depth.best()
        depth.checked(count, 0)
        depth.took(count + 1, PLAIN_S * (1 + 0.02 * count))
    assert depth.best() <= 2
    for _ in range(60):
        count = depth.best()
        depth.checked(count, count)
        depth.took(count + 1, PLAIN_S * (1 + 0.02 * count))
    assert depth.best() == 8
