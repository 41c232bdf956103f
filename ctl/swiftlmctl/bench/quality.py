"""Whether answers are still right: KV formats beside fp16, pass keys, JSON, tools, sense."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from swiftlmctl.bench import texts
from swiftlmctl.bench.endpoint import Endpoint
from swiftlmctl.bench.report import Report
from swiftlmctl.bench.sense import complaint, is_json_object
from swiftlmctl.bench.session import Session, tell
from swiftlmctl.errors import CtlError

FORMATS = ("fp16", "k4v3")
COLUMNS = ("KV", "KLD of the top 5", "same token", "pass key", "JSON", "tools", "sense")
_POSITIONS = 24
_LENGTHS = (1_000, 4_000, 16_000, 64_000, 128_000)
_SAMPLES = 5
_NAMES = {"city", "people"}
_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 24}, "people": {"type": "integer"}},
    "required": sorted(_NAMES),
    "additionalProperties": False,
}
_TOOL = {"type": "function", "function": {"name": "count", "parameters": _SCHEMA}}

Distribution = Mapping[str, float]


def fill(report: Report, session: Session, formats: Sequence[str]) -> None:
    """One column per check, one row per KV format; `fp16` is what the others are compared with."""
    report.notes.append(f"KLD against the first row, at {_POSITIONS} places of one text.")
    plain: list[tuple[str, Distribution]] = []
    for name in formats:
        tell(f"loading {session.endpoint.model}, KV {name}")
        try:
            context = session.load_anew(kv=name).context
        except CtlError as error:
            report.add(name, f"refused: {error}")
            continue
        session.clear_cache()
        tokens = _distributions(session, context)
        plain = plain or tokens
        report.add(
            name,
            f"{_mean_kld(plain, tokens):.4f}",
            f"{_agreement(plain, tokens):.0%}",
            _passkeys(session, context),
            f"{_valid_json(session.endpoint)} of {_SAMPLES}",
            f"{_valid_calls(session.endpoint)} of {_SAMPLES}",
            _story(session.endpoint) or "yes",
        )


def _distributions(session: Session, context: int) -> list[tuple[str, Distribution]]:
    """The next token after each of some beginnings of one long text."""
    text = texts.prose_of(min(2_000, context - 64), session.count_tokens, seed=1)
    step = len(text) // (_POSITIONS + 1)
    places = range(step, step * (_POSITIONS + 1), step)
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


def _passkeys(session: Session, context: int) -> str:
    """`found at 1,000 and 4,000`: every length that the context allows, the key at 70 %."""
    found: list[str] = []
    lost: list[str] = []
    for length in _LENGTHS:
        if length > context - 32:
            break
        tell(f"pass key in {length:,} tokens")
        key = 10_000 + length * 7 % 89_999
        prompt = texts.passkey(length - 64, session.count_tokens, 0.7, key)
        reply = session.endpoint.chat([{"role": "user", "content": prompt}], max_tokens=16)
        (found if str(key) in reply.text.replace(",", "") else lost).append(f"{length:,}")
    words = f"found at {', '.join(found)}" if found else "never found"
    return words + (f"; lost at {', '.join(lost)}" if lost else "")


def _valid_json(endpoint: Endpoint) -> int:
    form = {"type": "json_schema", "json_schema": {"name": "town", "schema": _SCHEMA}}
    question = [{"role": "user", "content": "Name a town and how many people live there."}]
    replies = (
        endpoint.chat(question, response_format=form, temperature=1, seed=seed, max_tokens=80)
        for seed in range(_SAMPLES)
    )
    return sum(is_json_object(reply.text) for reply in replies)


def _valid_calls(endpoint: Endpoint) -> int:
    question = [{"role": "user", "content": "Count the people of some town."}]
    valid = 0
    for seed in range(_SAMPLES):
        reply = endpoint.chat(
            question, tools=[_TOOL], tool_choice="required", temperature=1, seed=seed,
            max_tokens=120,
        )  # fmt: skip
        valid += bool(reply.tool_calls) and all(map(_fits, reply.tool_calls))
    return valid


def _fits(call: Mapping[str, str]) -> bool:
    try:
        return set(json.loads(call["arguments"])) == _NAMES
    except ValueError:
        return False


def _story(endpoint: Endpoint) -> str:
    """What is wrong with a longer free answer; empty when nothing is."""
    question = [{"role": "user", "content": "Tell a short story about a lighthouse."}]
    return complaint(endpoint.chat(question, max_tokens=160, temperature=0.7, seed=1).text)
