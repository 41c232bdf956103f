"""How long a suite will take, said before it starts: how fast this model is here, times what the
suite is going to ask.

A prompt of n tokens costs `a n + b n^2` seconds (the weights, and attention over what is there
already), the next token behind it `c + d n`; two probes of two lengths give all four.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swiftlmctl.bench import texts
from swiftlmctl.bench.session import Session, tell

_PROBE_TOKENS = (256, 1_024)
_PROBE_SHARE = 0.5  # of a short context, at most
_NEW_TOKENS = 8
_LONG_S = 600.0


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a suite, in tokens: its prompt, its answer, what of the prompt is cached."""

    prompt: int
    new: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Probe:
    """What one request took."""

    prompt: int
    read_s: float
    token_s: float  # each token of the answer


@dataclass(frozen=True, slots=True)
class Speed:
    short: Probe
    long: Probe

    def seconds(self, ask: Ask) -> float:
        return self._read(ask.prompt) - self._read(ask.cached) + ask.new * self._token(ask.prompt)

    def _read(self, tokens: int) -> float:
        low, high = (probe.read_s / probe.prompt for probe in (self.short, self.long))
        return tokens * self._line(low, high, tokens)

    def _token(self, tokens: int) -> float:
        return self._line(self.short.token_s, self.long.token_s, tokens)

    def _line(self, low: float, high: float, tokens: int) -> float:
        """Through both probes; never falling, as a busy machine's would."""
        slope = max(0.0, (high - low) / (self.long.prompt - self.short.prompt))
        return max(low if slope else min(low, high), 0.0) + slope * (tokens - self.short.prompt)


def announce(session: Session, asks: Iterable[Ask], context: int, smaller: str = "") -> None:
    """Measures the loaded model and says how long these requests will take; `smaller` is what
    would make it less."""
    tell(f"measuring how fast {session.endpoint.model} is here")
    speed = measured(session, context)
    expected = sum(map(speed.seconds, asks))
    probe = speed.long
    tell(
        f"reads {probe.prompt / probe.read_s:.0f} and writes {1 / probe.token_s:.1f} tokens/s at "
        f"{probe.prompt:,} tokens: about {duration(expected)} to go"
        + (f" ({smaller} takes less)" if smaller and expected > _LONG_S else "")
    )


def measured(session: Session, context: int) -> Speed:
    lengths = [min(tokens, int(context * _PROBE_SHARE)) for tokens in _PROBE_TOKENS]
    short, long = lengths if lengths[0] < lengths[1] else (lengths[1] // 2, lengths[1])
    _probe(session, short, seed=-1)  # kernels are compiled, pages read
    return Speed(_probe(session, short, seed=-2), _probe(session, long, seed=-3))


def _probe(session: Session, tokens: int, seed: int) -> Probe:
    text = texts.prose_of(tokens, session.count_tokens, seed)
    question = [{"role": "user", "content": text}]
    reply = session.endpoint.chat(
        question, max_tokens=_NEW_TOKENS, cache_prompt=False, ignore_eos=True
    )
    decode_s = max(reply.total_s - reply.first_s, 1e-6)
    return Probe(reply.prompt_tokens, reply.first_s, decode_s / max(reply.num_tokens - 1, 1))


def duration(seconds: float) -> str:
    """`40 seconds`, `7 minutes`, `2.5 hours`."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
