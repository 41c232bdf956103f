"""Tokenise, detokenise and embedding inputs: questions for the tokenizer threads."""

from __future__ import annotations

from dataclasses import dataclass

import betterproto2

from swiftlm_engine.messages import EngineFault, FaultKind, GenerateJob
from swiftlm_engine.prompt.prepare import Images
from swiftlm_engine.session.session import Session
from swiftlm_engine.text.encoder import MAX_TOKENS, TokenizerBroken, TooManyTokens
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
    ids = _ids(session, question.text or "", "text", question.add_special_tokens)
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
            _check_size(session, text or "", index)
            ids = _ids(session, text or "", "input")
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


def _check_size(session: Session, text: str, index: int) -> None:
    try:
        session.preparer.encoder.check_size(len(text))
    except TooManyTokens:
        raise EngineFault(
            FaultKind.CONTEXT_TOO_LONG,
            f"input[{index}] has {len(text):,} characters; this model takes at most "
            f"{session.facts.context} tokens",
            param="input",
        ) from None


def _ids(session: Session, text: str, param: str, special: bool = True) -> list[int]:
    try:
        return session.preparer.encoder.ids(text, special)
    except TooManyTokens as error:
        message = f"{param} has {error.count} tokens; at most {MAX_TOKENS} are given"
        raise EngineFault(FaultKind.CONTEXT_TOO_LONG, message, param=param) from error
    except TokenizerBroken as error:
        message = f"the tokenizer of model '{session.facts.model}' is broken: it {error}"
        raise EngineFault(FaultKind.MODEL_BROKEN, message, param=param) from error


def _check(session: Session, ids: list[int], param: str) -> None:
    limit = session.facts.vocab_size
    for token_id in ids:
        if not 0 <= token_id < limit:
            raise EngineFault(
                FaultKind.INVALID,
                f"token {token_id} is outside this model's vocabulary of {limit}",
                param=param,
            )
