"""From events to the wire."""

from __future__ import annotations

import json

from swiftlm_engine.generation import (
    Delta,
    EndReason,
    EngineFault,
    Event,
    FaultKind,
    Finished,
    Logprob,
    Progress,
    Started,
)
from swiftlm_engine.session import ModelFacts
from swiftlm_proto import messages as m

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
            message.texts.append(event.news.content)
        else:
            other.add(key)
            message.events.append(_event(event))
    return message


def fault(error: EngineFault) -> m.Fault:
    return m.Fault(
        kind=_FAULT_KINDS[error.kind],
        message=error.message,
        param=error.param,
        retry_after_s=error.retry_after_s,
    )


def loaded_model(facts: ModelFacts) -> m.LoadedModel:
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
        kv_report=json.dumps(facts.kv_report),
    )


def _event(event: Event) -> m.SequenceEvent:
    message = m.SequenceEvent(request_id=event.request_id, index=event.index)
    match event.news:
        case Started() as news:
            message.started = m.Started(
                prompt_tokens=news.prompt_tokens,
                cached_tokens=news.cached_tokens,
                cache_note=news.cache_note,
                thinking=news.thinking,
            )
        case Progress() as news:
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
        content=news.content,
        reasoning=news.reasoning,
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
    """Half a surrogate pair, which JSON may escape and no message can hold, as that escape."""
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
