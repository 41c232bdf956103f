"""Does speculation pay here and now? Measured, and switched off by itself when it does not."""

from __future__ import annotations

from collections.abc import Callable

TRIAL_STEPS = 12  # checked passes before a verdict
EARLY_STEPS = 4  # of a trial that is not worth half of what it replaces
PLAIN_STEPS = 4  # without speculation, to know what it has to beat: at first, and
PLAIN_EVERY = 128  # after so many checked passes, since a draft model always has a guess
PAUSE_TOKENS = 256  # tokens without speculation before the next trial: twice as many each time
MAX_PAUSE_TOKENS = 4096
MIN_GAIN = 1.05
# To look for a draft takes the last token first, so that the device waits for Python. Where nothing
# is found for so long, that must cost next to nothing, or looking pauses, too.
IDLE_STEPS = 32
IDLE_FLOOR = 0.98
IDLE_PAUSE_TOKENS = 128
MAX_IDLE_PAUSE_TOKENS = 1024


class Payoff:
    """Compares tokens per second of checked passes with those of plain steps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._plain = _Pace()
        self._checked = _Pace()
        self._idle = _Pace()
        self._idle_steps = 0
        self._next_idle_pause = IDLE_PAUSE_TOKENS
        self._steps = 0
        self._pause = 0
        self._next_pause = PAUSE_TOKENS
        self._plain_due = PLAIN_STEPS
        self._since_plain = 0

    @property
    def worth_trying(self) -> bool:
        return self._pause <= 0 and self._plain_due <= 0

    def plain_step(self, tokens: int, seconds: float) -> None:
        self._plain.add(tokens, seconds)
        self._pause -= tokens
        self._plain_due -= 1
        self._since_plain = 0

    def idle_step(self, tokens: int, seconds: float) -> None:
        """A step that looked for a draft and found none."""
        self._idle.add(tokens, seconds)
        self._idle_steps += 1
        if self._idle_steps < IDLE_STEPS:
            return
        self._idle_steps = 0
        if self._idle.rate < IDLE_FLOOR * self._plain.rate:
            self._pause = self._next_idle_pause
            self._next_idle_pause = min(2 * self._next_idle_pause, MAX_IDLE_PAUSE_TOKENS)
            self._plain.fade()
        self._idle.fade()

    def checked_step(self, tokens: int, seconds: float) -> None:
        """A pass that checked a draft and yielded `tokens`."""
        self._checked.add(tokens, seconds)
        self._steps += 1
        self._since_plain += 1
        if self._since_plain >= PLAIN_EVERY:
            self._plain_due, self._since_plain = PLAIN_STEPS, 0
        is_hopeless = self._checked.rate < self._plain.rate / 2
        if self._steps >= (EARLY_STEPS if is_hopeless else TRIAL_STEPS):
            self._judge()

    def _judge(self) -> None:
        if self._checked.rate < MIN_GAIN * self._plain.rate:
            self._pause, self._steps = self._next_pause, 0
            self._next_pause = min(2 * self._next_pause, MAX_PAUSE_TOKENS)
        else:
            self._next_pause, self._next_idle_pause = PAUSE_TOKENS, IDLE_PAUSE_TOKENS
        self._checked.fade()
        self._plain.fade()

    def now(self) -> float:
        return self._clock()


class _Pace:
    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self._tokens += tokens
        self._seconds += seconds

    def fade(self) -> None:
        """Old steps count for less: the context grows and the text changes."""
        self._tokens *= 0.5
        self._seconds *= 0.5

    @property
    def rate(self) -> float:
        return self._tokens / self._seconds if self._seconds > 0 else 0.0
