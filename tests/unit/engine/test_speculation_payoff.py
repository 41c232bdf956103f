"""Speculation is judged by the clock, and what does not pay is switched off and seldom tried."""

from __future__ import annotations

import pytest

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
