"""Output quality: KV formats vs. fp16, passkey, JSON, tool calls, coherence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from swiftlmctl.bench import texts
from swiftlmctl.bench.coherence import complaint, is_json_object
from swiftlmctl.bench.endpoint import Endpoint, Refused
from swiftlmctl.bench.estimate import Ask, announce
from swiftlmctl.bench.report import Report
from swiftlmctl.bench.session import Session, refusal, tell
from swiftlmctl.errors import CtlError

FORMATS = ("fp16", "k4v3")
COLUMNS = ("KV", "KLD of the top 5", "same token", "pass key", "JSON", "tools", "sense")
_MAX_KLD = 0.05  # mlx-lm's four bits are at 0.06 to 0.18 on models this was measured with
_JSON_TOKENS, _CALL_TOKENS, _STORY_TOKENS = 80, 120, 160
_NAMES = {"city", "people"}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 10**9}  # else its digits may never end
_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 24}, "people": _COUNT},
    "required": sorted(_NAMES),
    "additionalProperties": False,
}
_TOOL = {"type": "function", "function": {"name": "count", "parameters": _SCHEMA}}

Distribution = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class QualitySizes:
    text_tokens: int  # of the text whose next tokens are compared
    places: int
    passkeys: tuple[int, ...]  # tokens; those within the model's context
    samples: int

    def asks(self, context: int) -> Iterator[Ask]:
        """For one KV format."""
        text_tokens = min(self.text_tokens, context)
        yield Ask(text_tokens, self.places)  # each place finds the one before in the cache
        for length in self.passkeys:
            if length <= context:
                yield Ask(length, 16)
        for _ in range(self.samples):
            yield Ask(64, _JSON_TOKENS // 2)
            yield Ask(200, _CALL_TOKENS // 2)
        yield Ask(64, _STORY_TOKENS)


FULL = QualitySizes(2_000, 24, (1_000, 4_000, 16_000, 64_000, 128_000), 5)
QUICK = QualitySizes(800, 12, (1_000,), 2)


def fill(report: Report, session: Session, formats: Sequence[str], sizes: QualitySizes) -> None:
    """One column per check, one row per KV format; `fp16` is what the others are compared with."""
    report.notes.append(f"KLD against the first row, at {sizes.places} places of one text.")
    plain: list[tuple[str, Distribution]] = []
    for name in formats:
        tell(f"loading {session.endpoint.model}, KV {name}")
        try:
            context = session.load_anew(kv=name).context
        except CtlError as error:
            report.add(name, refusal(error))
            continue
        session.clear_cache()
        if name == formats[0]:
            asks = list(sizes.asks(context)) * len(formats)
            announce(session, asks, context, smaller="--quick")
        tokens = _distributions(session, context, sizes)
        plain = plain or tokens
        kld = _mean_kld(plain, tokens)
        report.check(kld <= _MAX_KLD, f"{name}: a KLD of at most {_MAX_KLD}, got {kld:.3f}")
        report.add(
            name,
            f"{kld:.4f}",
            f"{_agreement(plain, tokens):.0%}",
            _passkeys(session, context, sizes.passkeys),
            _valid(report, f"{name}: JSON", sizes.samples, _is_json(session.endpoint)),
            _valid(report, f"{name}: tool calls", sizes.samples, _is_call(session.endpoint)),
            _sense(report, name, session.endpoint),
        )


def _distributions(
    session: Session, context: int, sizes: QualitySizes
) -> list[tuple[str, Distribution]]:
    """The next token after each of some beginnings of one long text."""
    tell(f"next tokens at {sizes.places} places")
    text = texts.prose_of(min(sizes.text_tokens, context - 64), session.count_tokens, seed=1)
    step = len(text) // (sizes.places + 1)
    places = range(step, step * (sizes.places + 1), step)
    return [session.endpoint.next_token(text[:place]) for place in places]


def _mean_kld(
    plain: Sequence[tuple[str, Distribution]], other: Sequence[tuple[str, Distribution]]
) -> float:
    """KL(plain || other), nats, the tokens outside the top few taken as one."""
    pairs = zip(plain, other, strict=True)
    return sum(_kld(p, q) for (_, p), (_, q) in pairs) / max(len(plain), 1)


def _kld(p: Distribution, q: Distribution) -> float:
    shared = [(p[token], q[token]) for token in p if token in q]
    rest_p = max(1 - sum(math.exp(a) for a, _ in shared), 1e-9)
    rest_q = max(1 - sum(math.exp(b) for _, b in shared), 1e-9)
    return sum(math.exp(a) * (a - b) for a, b in shared) + rest_p * math.log(rest_p / rest_q)


def _agreement(
    plain: Sequence[tuple[str, Distribution]], other: Sequence[tuple[str, Distribution]]
) -> float:
    same = [a == b for (a, _), (b, _) in zip(plain, other, strict=True)]
    return sum(same) / max(len(same), 1)


def _passkeys(session: Session, context: int, lengths: Sequence[int]) -> str:
    """`found at 1,000 and 4,000`: every length that the context allows, the key at 70 %."""
    found: list[str] = []
    lost: list[str] = []
    for length in lengths:
        if length > context - 32:
            break
        tell(f"pass key in {length:,} tokens")
        key = 10_000 + length * 7 % 89_999
        prompt = texts.passkey(length - 64, session.count_tokens, 0.7, key)
        reply = session.endpoint.chat([{"role": "user", "content": prompt}], max_tokens=16)
        (found if str(key) in reply.text.replace(",", "") else lost).append(f"{length:,}")
    words = f"found at {', '.join(found)}" if found else "never found"
    return words + (f"; lost at {', '.join(lost)}" if lost else "")


def _valid(report: Report, what: str, samples: int, is_valid: Callable[[int], bool]) -> str:
    """`5 of 5`; a grammar holds each of them, so all have to be. They are asked at once."""
    tell(what)
    try:
        with ThreadPoolExecutor(samples) as clients:
            valid = sum(clients.map(is_valid, range(samples)))
    except Refused as error:
        return f"refused: {error}"
    report.check(valid == samples, f"{what}: {samples} of {samples} valid, got {valid}")
    return f"{valid} of {samples}"


def _is_json(endpoint: Endpoint) -> Callable[[int], bool]:
    form = {"type": "json_schema", "json_schema": {"name": "town", "schema": _SCHEMA}}
    question = [{"role": "user", "content": "Name a town and how many people live there."}]

    def asked(seed: int) -> bool:
        reply = endpoint.chat(
            question, response_format=form, temperature=1, seed=seed, max_tokens=_JSON_TOKENS
        )
        return is_json_object(reply.text)

    return asked


def _is_call(endpoint: Endpoint) -> Callable[[int], bool]:
    question = [{"role": "user", "content": "Count the people of some town."}]

    def asked(seed: int) -> bool:
        reply = endpoint.chat(
            question, tools=[_TOOL], tool_choice="required", parallel_tool_calls=False,
            temperature=1, seed=seed, max_tokens=_CALL_TOKENS,
        )  # fmt: skip
        return bool(reply.tool_calls) and all(map(_fits, reply.tool_calls))

    return asked


def _fits(call: Mapping[str, str]) -> bool:
    try:
        return set(json.loads(call["arguments"])) == _NAMES
    except ValueError:
        return False


def _sense(report: Report, name: str, endpoint: Endpoint) -> str:
    """`yes`, or what is wrong with a longer free answer."""
    tell(f"{name}: a story")
    question = [{"role": "user", "content": "Tell a short story about a lighthouse."}]
    reply = endpoint.chat(question, max_tokens=_STORY_TOKENS, temperature=0.7, seed=1)
    wrong = complaint(reply.text)
    report.check(not wrong, f"{name}: a story that makes sense, got {wrong}")
    return wrong or "yes"
