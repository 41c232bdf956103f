"""A conversation with a model through the admin socket: history in, text out."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import betterproto2

from swiftlm_proto import messages as m
from swiftlmctl import client
from swiftlmctl.errors import CtlError

Writer = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asked for; None = as configured."""

    model: str = ""
    system: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    think: bool | None = None


@dataclass(slots=True)
class Answer:
    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    usage: m.Usage | None = None
    timings: m.Timings | None = None


@dataclass(slots=True)
class Conversation:
    daemon: client.Daemon
    wishes: Wishes
    messages: list[m.Message] = field(default_factory=list)

    def clear(self) -> None:
        self.messages.clear()

    async def ask(self, text: str, write: Writer) -> Answer:
        """Sends `text` with the history so far; the answer joins the history."""
        asked = _message("user", text)
        answer = Answer()
        stream = self.daemon.admin.generate(
            m.AdminGenerateRequest(model=self.wishes.model, request=self._request(asked))
        )
        async for event in stream:
            _take(event, answer, write)
        if not answer.finish_reason:
            raise CtlError("swiftlmd ended the answer without a closing event")
        self.messages += [asked, _message("assistant", answer.text)]
        return answer

    def _request(self, asked: m.Message) -> m.GenerateRequest:
        system = [_message("system", self.wishes.system)] if self.wishes.system else []
        return m.GenerateRequest(
            request_id=f"ctl-{uuid.uuid4().hex[:12]}",
            chat=m.Chat(
                messages=[*system, *self.messages, asked], enable_thinking=self.wishes.think
            ),
            sampling=m.Sampling(temperature=self.wishes.temperature, seed=self.wishes.seed),
            max_tokens=self.wishes.max_tokens,
        )


def _message(role: str, text: str) -> m.Message:
    return m.Message(role=role, parts=[m.Part(text=text)])


def _take(event: m.SequenceEvent, answer: Answer, write: Writer) -> None:
    _, news = betterproto2.which_one_of(event, "event")
    if isinstance(news, m.Progress):
        _note(f"reading the prompt {_share(news):.0%}")
        return
    if not answer.text and not answer.reasoning:
        _note("")
    if isinstance(news, m.Delta):
        if news.reasoning and not answer.reasoning:
            write("<think>")
        if news.content and answer.reasoning and not answer.text:
            write("</think>\n")
        answer.reasoning += news.reasoning
        answer.text += news.content
        write(news.reasoning + news.content)
    elif isinstance(news, m.Finished):
        client.check(news.fault)
        answer.finish_reason = (news.reason.name or "").lower()
        answer.usage, answer.timings = news.usage, news.timings


def _share(progress: m.Progress) -> float:
    return progress.done_tokens / progress.total_tokens if progress.total_tokens else 0.0


def _note(text: str) -> None:
    """One line on a terminal's error stream that the next one, or the answer, replaces."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def silent(text: str) -> None:
    """For JSON, which comes at the end."""


def summary(answer: Answer) -> str:
    usage, timings = answer.usage or m.Usage(), answer.timings or m.Timings()
    return (
        f"[{usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached), "
        f"{usage.completion_tokens} generated, first after {timings.first_token_s * 1000:.0f} ms, "
        f"{timings.decode_tokens_per_s:.1f} tok/s, {answer.finish_reason}]"
    )
