"""Messages of the protocol to what the engine works with, and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import betterproto2

from swiftlm_engine.expansion.options import ExpandOptions
from swiftlm_engine.load.device import DeviceFacts
from swiftlm_engine.load.options import EngineOptions
from swiftlm_engine.messages import (
    Delta,
    EndReason,
    EngineFault,
    Event,
    FaultKind,
    Finished,
    GenerateJob,
    Grammar,
    GrammarKind,
    Infill,
    LoadProgress,
    Logprob,
    Prompt,
    Started,
    ToolChoice,
)
from swiftlm_engine.prefix.cache import PrefixStats
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.session.session import LoadedModelInfo
from swiftlm_engine.text.chat import Chat, ImagePart, Message, Part, TextPart, ToolCall, ToolSpec
from swiftlm_proto import messages as m
from swiftlm_proto.layers import ALL_LAYERS

_TOOL_CHOICES = {
    m.ToolChoice.AUTO: ToolChoice.AUTO,
    m.ToolChoice.NONE: ToolChoice.NONE,
    m.ToolChoice.REQUIRED: ToolChoice.REQUIRED,
    m.ToolChoice.NAMED: ToolChoice.NAMED,
}

_SAME = tuple(
    one.name
    for one in dataclasses.fields(EngineOptions)
    if one.name in m.LoadRequest.__dataclass_fields__
    and one.name not in ("prefix_cache_dir", "gpu_layers", "template_kwargs")
)


def options(request: m.LoadRequest) -> EngineOptions:
    """Fields of one name and type are the same; the others are said here."""
    same: dict[str, Any] = {name: getattr(request, name) for name in _SAME}
    return EngineOptions(
        **same,
        folder=Path(request.path),
        slice_ms=request.prefill_slice_ms,
        prefix_cache_dir=Path(request.prefix_cache_dir) if request.prefix_cache_dir else None,
        gpu_layers=None if request.gpu_layers == ALL_LAYERS else request.gpu_layers,
        template_kwargs=_json_values(request.template_kwargs, "template_kwargs"),
        records_dir=Path(request.config_dir) if request.config_dir else None,
        expand=ExpandOptions(
            request.expand_head, request.expand_attention_layers, request.expand_mlp_layers
        ),
    )


def job(request: m.GenerateRequest) -> GenerateJob:
    """Raises `EngineFault(INVALID)` for what cannot be read."""
    chat = request.chat
    return GenerateJob(
        request_id=request.request_id,
        prompt=_prompt(request),
        sampling=_sampling(request.sampling),
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens,
        stop=tuple(request.stop),
        stop_token_ids=tuple(request.stop_token_ids),
        n=request.n or 1,
        top_logprobs=request.top_logprobs,
        ignore_eos=request.ignore_eos,
        deadline_s=request.deadline_s or None,
        raw_text=request.raw_text,
        echo=request.echo,
        grammar=_grammar(request.constraint),
        thinking_budget=request.thinking_budget,
        cache_salt=request.cache_salt,
        no_cache=request.no_cache,
        tool_choice=_TOOL_CHOICES[chat.tool_choice] if chat else ToolChoice.NONE,
        tool_name=chat.tool_name if chat else "",
        parallel_tool_calls=chat is None or chat.parallel_tool_calls is not False,
        return_token_ids=request.return_token_ids,
        client=request.client,
    )


def chat(message: m.Chat) -> Chat:
    return Chat(
        messages=tuple(_message(one) for one in message.messages),
        tools=tuple(_tool(one) for one in message.tools),
        enable_thinking=message.enable_thinking,
        reasoning_effort=message.reasoning_effort or None,
        template_kwargs=_json_values(message.template_kwargs, "chat_template_kwargs"),
        continue_final_message=message.continue_final_message,
    )


def _prompt(request: m.GenerateRequest) -> Prompt:
    match betterproto2.which_one_of(request, "prompt"):
        case ("chat", m.Chat() as message):
            budget, salt = request.thinking_budget, request.cache_salt
            shown = replace(chat(message), cache_salt=salt, thinking_budget=budget)
            # With tool_choice none the model must not see the tools at all.
            hidden = message.tool_choice is m.ToolChoice.NONE
            return replace(shown, tools=()) if hidden else shown
        case ("text", str() as text):
            return text
        case ("token_ids", m.TokenIds() as tokens):
            return tuple(tokens.ids)
        case ("infill", m.Infill() as gap):
            return Infill(gap.prefix, gap.suffix)
        case _:
            raise EngineFault(FaultKind.INVALID, "the request has no prompt", param="prompt")


def _message(one: m.Message) -> Message:
    return Message(
        role=one.role,
        parts=tuple(_part(part) for part in one.parts),
        reasoning=one.reasoning or None,
        tool_calls=tuple(ToolCall(c.id, c.name, c.arguments) for c in one.tool_calls),
        tool_call_id=one.tool_call_id or None,
        name=one.name or None,
    )


def _part(part: m.Part) -> Part:
    if part.image is not None:
        return ImagePart(part.image.content, part.image.media_type)
    return TextPart(part.text or "")


def _tool(tool: m.Tool) -> ToolSpec:
    if not tool.parameters:
        return ToolSpec(tool.name, tool.description, None, tool.strict)
    parameters = _json(tool.parameters, f"tools: parameters of '{tool.name}'")
    if not isinstance(parameters, dict):
        raise _invalid("tools", f"parameters of tool '{tool.name}' must be a JSON Schema object")
    return ToolSpec(tool.name, tool.description, parameters, tool.strict)


def _grammar(constraint: m.Constraint | None) -> Grammar | None:
    if constraint is None:
        return None
    match betterproto2.which_one_of(constraint, "grammar"):
        case ("json_object", True):
            return Grammar(GrammarKind.JSON_OBJECT)
        case ("choices", m.Choices() as choices):
            return Grammar(GrammarKind.CHOICE, choices=tuple(choices.values))
        case (("json_schema" | "regex" | "lark") as kind, str() as text):
            return Grammar(GrammarKind(kind), text, strict=constraint.strict)
        case _:
            return None


def _sampling(wire: m.Sampling | None) -> SamplingSettings:
    if wire is None:
        return SamplingSettings()
    given = {
        name: value for name in SIMPLE_SAMPLING_FIELDS if (value := getattr(wire, name)) is not None
    }
    if wire.repetition_context is not None:
        given["repetition_context"] = max(1, wire.repetition_context)
    return SamplingSettings(**given, logit_bias=tuple(wire.logit_bias.items()))


SIMPLE_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "xtc_probability",
    "xtc_threshold",
)


# Words of `apply_chat_template` itself: a client that could say them could bring a template, that
# is a program, of its own.
_RENDERERS_OWN = frozenset(
    {"conversation", "tools", "chat_template", "add_generation_prompt", "continue_final_message"}
    | {"tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"}
    | {"return_assistant_tokens_mask", "tokenizer_kwargs", "sanitize_control_tokens", "messages"}
)


def _json_values(values: Mapping[str, str], param: str) -> dict[str, object]:
    if taken := sorted(values.keys() & _RENDERERS_OWN):
        raise _invalid(param, f"{param}: '{taken[0]}' is not a chat-template variable")
    return {key: _json(text, f"{param}.{key}") for key, text in values.items()}


def _json(text: str, what: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _invalid(what.split(":")[0], f"{what} is not JSON: {error}") from error


def _invalid(param: str, message: str) -> EngineFault:
    return EngineFault(FaultKind.INVALID, message, param=param)


_FAULT_KINDS = {kind: m.FaultKind[kind.name] for kind in FaultKind}
_REASONS = {reason: m.FinishedReason[reason.name] for reason in EndReason}


def step_events(events: list[Event]) -> m.StepEvents:
    """One message for all news of a step.

    Columns come before events on the reading side, so plain text may go into the columns only as
    long as nothing else of the same choice stands before it.
    """
    message = m.StepEvents()
    other: set[tuple[str, int]] = set()
    for event in events:
        key = (event.request_id, event.index)
        if isinstance(event.news, Delta) and event.news.is_plain_text and key not in other:
            message.text_request_ids.append(event.request_id)
            message.text_indexes.append(event.index)
            message.texts.append(_sendable(event.news.content))
        else:
            other.add(key)
            message.events.append(_event(event))
    return message


def fault(error: EngineFault) -> m.Fault:
    return m.Fault(
        kind=_FAULT_KINDS[error.kind],
        message=_sendable(error.message),
        param=_sendable(error.param),
        retry_after_s=error.retry_after_s,
    )


def loaded_model(facts: LoadedModelInfo) -> m.LoadedModel:
    return m.LoadedModel(
        model=facts.model,
        model_type=facts.model_type,
        context=facts.context,
        vocab_size=facts.vocab_size,
        weight_bytes=facts.weight_bytes,
        dtype=facts.dtype,
        device=facts.device,
        blas=facts.blas,
        kv=facts.kv,
        parallel=facts.parallel,
        prefill_chunk=facts.prefill_chunk,
        fingerprint=facts.fingerprint,
        vision=facts.vision,
        reasoning=facts.reasoning,
        tool_format=facts.tool_format,
        notes=list(facts.notes),
        weights_note=facts.weights_note,
        kv_report=json.dumps(facts.kv_report),
        device_info=_device_info(facts.device_facts),
    )


def _device_info(facts: DeviceFacts) -> m.DeviceInfo:
    return m.DeviceInfo(
        facts.name,
        facts.architecture,
        facts.memory_bytes,
        facts.working_set_bytes,
        facts.max_buffer_bytes,
    )


def _event(event: Event) -> m.SequenceEvent:
    message = m.SequenceEvent(request_id=event.request_id, index=event.index)
    match event.news:
        case Started() as news:
            message.started = m.Started(
                prompt_tokens=news.prompt_tokens,
                cached_tokens=news.cached_tokens,
                cache_note=_sendable(news.cache_note),
                thinking=news.thinking,
                warnings=[_sendable(text) for text in news.warnings],
            )
        case LoadProgress() as news:
            message.progress = m.Progress(
                done_tokens=news.done_tokens, total_tokens=news.total_tokens
            )
        case Delta() as news:
            message.delta = _delta(news)
        case Finished() as news:
            message.finished = _finished(news)
    return message


def _delta(news: Delta) -> m.Delta:
    return m.Delta(
        content=_sendable(news.content),
        reasoning=_sendable(news.reasoning),
        tool_calls=[
            m.ToolCallDelta(
                index=c.index, id=c.id, name=_sendable(c.name), arguments=_sendable(c.arguments)
            )
            for c in news.tool_calls
        ],
        logprobs=[_logprob(one) for one in news.logprobs],
        token_ids=list(news.token_ids),
    )


def _sendable(text: str) -> str:
    """Half a surrogate pair, which JSON may escape and no message can hold, as that escape: one
    such text would end the stream that all requests share."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def _logprob(one: Logprob) -> m.TokenLogprob:
    return m.TokenLogprob(
        token_id=one.token_id,
        token=one.token,
        logprob=one.logprob,
        top=[_logprob(other) for other in one.top],
    )


def _finished(news: Finished) -> m.Finished:
    usage, timings = news.usage, news.timings
    return m.Finished(
        reason=_REASONS[news.reason],
        usage=m.Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=usage.reasoning_tokens,
        ),
        timings=m.Timings(
            queue_s=timings.queue_s,
            prefill_s=timings.prefill_s,
            first_token_s=timings.first_token_s,
            decode_s=timings.decode_s,
            prefill_tokens_per_s=timings.prefill_tokens_per_s,
            decode_tokens_per_s=timings.decode_tokens_per_s,
            draft_tokens=timings.draft_tokens,
            draft_accepted=timings.draft_accepted,
        ),
        fault=None if news.fault is None else fault(news.fault),
        stop_sequence=news.stop_sequence,
    )


def stream_counters(found: Mapping[str, Any]) -> m.StreamCounters:
    layers = {path: m.LayerCounters(**counts) for path, counts in found["layers"].items()}
    return m.StreamCounters(**{**found, "layers": layers})


def prefix_stats(stats: PrefixStats) -> m.PrefixStats:
    found = dataclasses.asdict(stats)
    if stats.ssd is not None:
        deleted = [
            m.PrefixDeleted(one.name, one.nbytes, list(one.changed)) for one in stats.ssd.deleted
        ]
        found["ssd"] = m.PrefixDiskStats(**{**found["ssd"], "deleted": deleted})
    return m.PrefixStats(**found)
