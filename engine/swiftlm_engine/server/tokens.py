"""Tokenise, detokenise and embedding inputs: questions for the tokenizer thread."""

from __future__ import annotations

from dataclasses import dataclass

import betterproto2

from swiftlm_engine.messages import EngineFault, FaultKind, GenerateJob
from swiftlm_engine.prompt.prepare import Images
from swiftlm_engine.session.session import Session
from swiftlm_proto import messages as m


@dataclass(frozen=True, slots=True)
class ChatToTokenize:
    job: GenerateJob
    images: Images
    with_text: bool


def tokenize_chat(session: Session, question: ChatToTokenize) -> m.TokenizeReply:
    ids = session.preparer.tokenise(question.job, question.images).token_ids
    return _reply(session, ids, with_text=question.with_text)


def tokenize_text(session: Session, question: m.TokenizeRequest) -> m.TokenizeReply:
    ids = session.preparer.tokenizer.encode(
        question.text or "", add_special_tokens=question.add_special_tokens
    )
    return _reply(session, ids, with_text=question.with_text)


def _reply(session: Session, ids: list[int], *, with_text: bool) -> m.TokenizeReply:
    text = session.preparer.tokenizer.decode(ids) if with_text else ""
    return m.TokenizeReply(ids=ids, text=text)


def detokenize(session: Session, question: m.DetokenizeRequest) -> m.DetokenizeReply:
    _check(session, list(question.ids), "tokens")
    return m.DetokenizeReply(text=session.preparer.tokenizer.decode(list(question.ids)))


def embed_ids(session: Session, question: m.EmbedRequest) -> list[list[int]]:
    """Token ids of each input. Raises when one is empty, unknown or longer than the context."""
    return [_embed_input(session, one, i) for i, one in enumerate(question.inputs)]


def _embed_input(session: Session, one: m.EmbedInput, index: int) -> list[int]:
    match betterproto2.which_one_of(one, "input"):
        case ("token_ids", m.TokenIds() as given):
            ids = list(given.ids)
            _check(session, ids, "input")
        case (_, text):
            ids = session.preparer.tokenizer.encode(text or "")
    if not ids:
        raise EngineFault(FaultKind.INVALID, f"input[{index}] is empty", param="input")
    limit = session.facts.context
    if len(ids) > limit:
        raise EngineFault(
            FaultKind.CONTEXT_TOO_LONG,
            f"input[{index}] has {len(ids)} tokens; this model takes at most {limit}",
            param="input",
        )
    return ids


def _check(session: Session, ids: list[int], param: str) -> None:
    limit = session.facts.vocab_size
    for token_id in ids:
        if not 0 <= token_id < limit:
            raise EngineFault(
                FaultKind.INVALID,
                f"token {token_id} is outside this model's vocabulary of {limit}",
                param=param,
            )
