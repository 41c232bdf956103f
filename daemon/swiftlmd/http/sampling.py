"""The fields that chat and completions share, and their place in the engine's request."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, Field

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.http.errors import invalid, unsupported
from swiftlmd.http.schema import (
    MAX_COUNT,
    Body,
    Int,
    Limit,
    Lookback,
    Natural,
    Positive,
    Seed,
    TopK,
    Unset,
)

MAX_TOKEN_ID = 2**31 - 1
MAX_BIASES = 1 << 18  # as many as the largest vocabularies have
MAX_BIAS = 10_000.0
MAX_STOP_CHARS = 4096

_CONTEXT = "the context is set at load; use `swiftlmctl load MODEL --context N`"
_PENALTY = Field(ge=-100, le=100)
_SHARE = Field(ge=0, le=1)
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ns|us|µs|ms|s|m|h|d)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}


class StreamOptions(Body):
    include_usage: bool | None = None
    ignored: ClassVar[frozenset[str]] = frozenset({"include_obfuscation", "continuous_usage_stats"})


class StructuredOutputs(Body):
    """vLLM's spelling of constraints."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Sampled(Body):
    """Any OpenAI request that samples tokens."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Unset[Positive] = None
    best_of: Unset[Int] = None
    max_tokens: Limit = Field(
        default=None, validation_alias=AliasChoices("max_tokens", "num_predict", "n_predict")
    )
    min_tokens: Unset[Natural] = None
    temperature: Unset[Annotated[float, Field(ge=0, le=100)]] = None
    top_p: Unset[Annotated[float, _SHARE]] = None
    top_k: Unset[TopK] = None
    min_p: Unset[Annotated[float, _SHARE]] = None
    repetition_penalty: Unset[Annotated[float, Field(ge=0.01, le=100)]] = Field(
        default=None, validation_alias=AliasChoices("repetition_penalty", "repeat_penalty")
    )
    repetition_context_size: Unset[Lookback] = Field(
        default=None, validation_alias=AliasChoices("repetition_context_size", "repeat_last_n")
    )
    presence_penalty: Unset[Annotated[float, _PENALTY]] = None
    frequency_penalty: Unset[Annotated[float, _PENALTY]] = None
    xtc_probability: Unset[Annotated[float, _SHARE]] = None
    xtc_threshold: Unset[Annotated[float, _SHARE]] = None
    logit_bias: dict[str, float] | None = None
    seed: Seed = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int] | None = None
    ignore_eos: bool | None = None
    keep_alive: int | float | str | None = None
    cache_salt: str | None = None
    cache_prompt: bool | None = None
    return_token_ids: bool | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None

    ignored: ClassVar[frozenset[str]] = frozenset(
        {"user", "metadata", "store", "service_tier", "safety_identifier", "verbosity"}
        | {"prompt_cache_retention", "prediction", "prompt_cache_options", "prompt_cache_key"}
    )
    refused: ClassVar[Mapping[str, str]] = {
        "num_ctx": _CONTEXT,
        "n_ctx": _CONTEXT,
        "adapters": "LoRA adapters are not loaded per request",
        "use_beam_search": "only sampling and greedy decoding exist",
        # These would change the shape of the answer.
        **dict.fromkeys(
            ("prompt_logprobs", "logprob_start_len", "return_hidden_states"),
            "send echo: true with logprobs to /v1/completions",
        ),
        **dict.fromkeys(("n_probs", "post_sampling_probs"), "use logprobs and top_logprobs"),
        "return_tokens_as_token_ids": "use return_token_ids",
        # These would change what is chosen.
        **dict.fromkeys(
            (
                *("typical_p", "tfs_z", "top_n_sigma", "top_a", "mirostat", "mirostat_mode"),
                *("dynatemp_range", "smoothing_factor"),
            ),
            "use temperature, top_p, top_k or min_p",
        ),
        **dict.fromkeys(
            ("dry_multiplier", "length_penalty", "no_repeat_ngram_size"),
            "use repetition_penalty, presence_penalty or frequency_penalty",
        ),
        **dict.fromkeys(("allowed_token_ids", "bad_words", "bad_words_ids"), "use logit_bias"),
        "grammar": "GBNF is not read; use guided_grammar, with a Lark grammar",
        "truncate_prompt_tokens": "no prompt is ever cut",
        "prompt_embeds": "send text or token ids",
    }
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "prompt_logprobs": (),
        **dict.fromkeys(("typical_p", "tfs_z", "length_penalty"), (0, 1)),
        "top_n_sigma": (0, -1),
        "truncate_prompt_tokens": (-1,),
        "logprob_start_len": (-1,),
    }


def apply(body: Sampled, request: m.GenerateRequest, options: HttpOptions) -> None:
    """Fills `request` with everything of `body` that is not the prompt."""
    request.sampling = _sampling(body)
    request.n = num_choices(body, options)
    request.max_tokens = token_limit(body.max_tokens)
    request.min_tokens = body.min_tokens or 0
    request.stop = stops(body.stop, options)
    request.stop_token_ids = [token_id(i, "stop_token_ids") for i in body.stop_token_ids or ()]
    request.ignore_eos = bool(body.ignore_eos)
    request.constraint = _constraint(body)
    request.cache_salt = body.cache_salt or ""
    request.no_cache = body.cache_prompt is False
    request.return_token_ids = bool(body.return_token_ids)
    request.keep_alive_s = keep_alive_s(body.keep_alive)


def token_limit(*limits: int | None) -> int | None:
    """The first limit that was given. More than the wire can hold is as good as none."""
    given = next((limit for limit in limits if limit is not None), None)
    return None if given is None else min(given, MAX_COUNT)


def num_choices(body: Sampled, options: HttpOptions) -> int:
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise unsupported("best_of: only the same value as n is supported", "best_of")
    if body.n is None:
        return 1
    if not 1 <= body.n <= options.max_choices:
        raise invalid(f"n: must be between 1 and {options.max_choices}", "n")
    return body.n


def stops(stop: str | list[str] | None, options: HttpOptions, param: str = "stop") -> list[str]:
    """The stop strings; empty ones mean none, as clients that always send the field intend."""
    listed = [stop] if isinstance(stop, str) else stop or []
    listed = [text for text in listed if text]
    if len(listed) > options.max_stops:
        raise invalid(f"{param}: at most {options.max_stops} strings", param)
    if any(len(text) > MAX_STOP_CHARS for text in listed):
        raise invalid(f"{param}: at most {MAX_STOP_CHARS} characters each", param)
    return listed


def token_id(value: int, param: str) -> int:
    if not 0 <= value <= MAX_TOKEN_ID:
        raise invalid(f"{param}: {value} is not a token id", param)
    return value


def keep_alive_s(value: int | float | str | None) -> int | None:
    """Seconds, or a duration as Go writes them ('5m', '1h30m', '1.5h'); negative = for ever."""
    if value is None or value == "":
        return None
    seconds = _seconds(value) if isinstance(value, str) else float(value)
    if seconds is None or not math.isfinite(seconds):
        raise invalid("keep_alive: use seconds, or a duration such as '5m'", "keep_alive")
    if seconds < 0:
        return -1
    return min(math.ceil(seconds), MAX_COUNT)


def _seconds(text: str) -> float | None:
    text = text.strip()
    sign, digits = (-1, text[1:]) if text[:1] == "-" else (1, text)
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", digits):
        return sign * float(digits)
    pieces = _DURATION.findall(digits)
    if not pieces or "".join(number + unit for number, unit in pieces) != digits:
        return None
    return sign * sum(float(number) * _UNITS[unit] for number, unit in pieces)


def _sampling(body: Sampled) -> m.Sampling:
    lookback = body.repetition_context_size
    sampling = m.Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=None if body.top_k is None else max(0, body.top_k),
        min_p=body.min_p,
        repetition_penalty=1.0 if lookback == 0 else body.repetition_penalty,
        repetition_context=MAX_COUNT if lookback == -1 else lookback or None,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=_logit_bias(body.logit_bias),
        seed=body.seed,
        xtc_probability=body.xtc_probability,
        xtc_threshold=body.xtc_threshold,
    )
    if (body.xtc_threshold or 0) > 0.5:  # no two tokens are that likely: it cannot act
        sampling.xtc_probability = sampling.xtc_threshold = None
    if body.top_p == 0:  # the smallest nucleus is the likeliest token
        sampling.top_p, sampling.top_k = None, 1
    return sampling


def _logit_bias(bias: dict[str, float] | None) -> dict[int, float]:
    if not bias:
        return {}
    if len(bias) > MAX_BIASES:
        raise invalid(f"logit_bias: at most {MAX_BIASES} tokens", "logit_bias")
    checked = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise invalid(f"logit_bias: {key[:32]!r} is not a token id", "logit_bias")
        if not -MAX_BIAS <= value <= MAX_BIAS:
            where = f"logit_bias.{key}"
            raise invalid(f"{where}: must be between {-MAX_BIAS:g} and {MAX_BIAS:g}", "logit_bias")
        checked[token_id(int(key), "logit_bias")] = float(value)
    return checked


def _constraint(body: Sampled) -> m.Constraint | None:
    outputs = body.structured_outputs or StructuredOutputs()
    given = [
        (name, value)
        for name, value in (
            ("guided_json", body.guided_json),
            ("structured_outputs.json", outputs.json_),
            ("guided_regex", body.guided_regex),
            ("structured_outputs.regex", outputs.regex),
            ("guided_grammar", body.guided_grammar),
            ("structured_outputs.grammar", outputs.grammar),
            ("guided_choice", body.guided_choice),
            ("structured_outputs.choice", outputs.choice),
        )
        if value is not None
    ]
    if not given:
        return m.Constraint(json_object=True) if outputs.json_object else None
    if len({name.rpartition("_")[2].rpartition(".")[2] for name, _ in given}) > 1:
        raise invalid("only one of json, regex, grammar and choice can hold", "structured_outputs")
    name, value = given[0]
    if value in ("", []):  # an answer that nothing binds is not what was asked for
        raise invalid(f"{name}: is empty; leave it out, or say what the answer follows", name)
    if isinstance(value, list):
        return m.Constraint(choices=m.Choices(values=value))
    if name.endswith("json"):
        return m.Constraint(json_schema=value if isinstance(value, str) else json.dumps(value))
    assert isinstance(value, str), "only a schema is an object"
    return m.Constraint(regex=value) if name.endswith("regex") else m.Constraint(lark=value)
