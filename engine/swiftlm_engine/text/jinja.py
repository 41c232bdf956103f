"""Jinja: turns to text by a model's own template, with what it wants to be given found out first.

A template is foreign code. It may raise anything in TEMPLATE_ERRORS.
"""

import contextlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from jinja2 import TemplateError

from swiftlm_engine.text.chat import Chat, ImagePart, Message, Part, TextPart, ToolCall, tool_dicts
from swiftlm_engine.text.detokenizer import bare
from swiftlm_engine.text.isolated_template import IsolatedTemplates
from swiftlm_engine.text.template_environment import render
from swiftlm_engine.text.thinking import ThinkingSwitches, find_switches
from swiftlm_engine.text.tools.json_stream import mend_object
from swiftlm_engine.text.turns import Turns

# A template raises what it was written to raise, or what its author forgot.
TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError)
CONTINUE_HERE = "\u2402swiftlm continues here\u2403"


class Renderer:
    """`tokenizer` is a Hugging Face one, bare or wrapped by mlx-lm."""

    def __init__(
        self,
        tokenizer: Any,
        defaults: Mapping[str, object] | None = None,
        templates: IsolatedTemplates | None = None,
    ) -> None:
        # Any: transformers and mlx-lm are untyped here.
        self._wrapper = tokenizer
        self._tokenizer = bare(tokenizer)
        # mlx-lm's renderers in Python, for models that come without a Jinja template.
        self._custom = vars(tokenizer).get("_chat_template")
        self._defaults = dict(defaults or {})
        self._draw_source = render if templates is None else templates.render
        self.source = self._read_source()
        self._dict_arguments: bool | None = None
        self._broken_arguments: bool | None = None
        self._parts: bool | None = None

    @property
    def exists(self) -> bool:
        return self._custom is not None or bool(self._tokenizer.chat_template)

    @property
    def is_jinja(self) -> bool:
        """The source says what the template can do."""
        return self._custom is None

    def draw(self, chat: Chat, turns: Turns, as_parts: bool, *, answer: bool) -> str:
        """The text of these turns; with `answer`, up to where the model goes on."""
        goes_on = answer and chat.continue_final_message and turns[-1].role == "assistant"
        if goes_on:
            turns = (*turns[:-1], _open_ended(turns[-1]))
        messages = [self._as_dict(turn, as_parts) for turn in turns]
        tools = tool_dicts(chat.tools) or None
        text = self._apply(messages, tools, answer and not goes_on, self._variables(chat))
        if as_parts and not self._takes_parts():
            raise ValueError("the template takes no content in parts")
        if goes_on:
            if CONTINUE_HERE not in text:
                raise ValueError("the template drops the message that is to be continued")
            text = text[: text.index(CONTINUE_HERE)]
        return text

    def _variables(self, chat: Chat) -> dict[str, object]:
        given = dict(chat.template_kwargs)
        variables = self._defaults | given
        thinking, effort = chat.thinks, chat.reasoning_effort
        if thinking is not None:
            # Most templates look at one of these, some only in a place that no probe comes to.
            variables |= {"enable_thinking": thinking, "thinking": thinking}
        if effort not in (None, "none"):
            variables["reasoning_effort"] = effort
        if self.is_jinja:
            known = self.thinking.variables(thinking, effort, chat.thinking_budget)
            variables |= {key: value for key, value in known.items() if key not in given}
        return variables

    @cached_property
    def thinking(self) -> ThinkingSwitches:
        """How this template is told to think; found by drawing a short conversation."""
        trained = ("low", "medium", "high") if "<|channel|>analysis" in self.source else ()
        return find_switches(self.source, self._greeting, trained)

    def _greeting(self, variables: Mapping[str, object]) -> str | None:
        for content in ("Hi", [{"type": "text", "text": "Hi"}]):
            messages = [{"role": "user", "content": content}]
            with contextlib.suppress(*TEMPLATE_ERRORS):
                return self._apply(messages, None, True, self._defaults | dict(variables))
        return None

    def _apply(
        self, messages: list[Any], tools: list[Any] | None, answer: bool, variables: dict[str, Any]
    ) -> str:
        common: dict[str, Any] = {"add_generation_prompt": answer, "tokenize": False}
        if self._custom is not None:
            variables.pop("thinking", None)
            if tools is not None:
                common["tools"] = tools
            return str(self._wrapper.apply_chat_template(messages, **common, **variables))
        if not _renders_jinja(self._tokenizer):
            text = self._tokenizer.apply_chat_template(messages, tools=tools, **common, **variables)
            return str(text)
        source = self._tokenizer.get_chat_template(None, tools)
        given = {
            "tools": tools,
            "documents": None,
            "add_generation_prompt": answer,
            **self._tokenizer.special_tokens_map,
            **variables,
        }
        return self._draw_source(source, messages, given)

    def _as_dict(self, turn: Message, as_parts: bool) -> dict[str, Any]:
        shown: dict[str, Any] = {"role": turn.role}
        shown["content"] = _part_dicts(turn.parts) if as_parts else turn.text
        if turn.reasoning is not None:
            shown["reasoning_content"] = turn.reasoning
        if turn.tool_calls:
            shown["tool_calls"] = [self._call_dict(call) for call in turn.tool_calls]
        if turn.tool_call_id is not None:
            shown["tool_call_id"] = turn.tool_call_id
        if turn.name is not None:
            shown["name"] = turn.name
        return shown

    # -- tool arguments

    def _call_dict(self, call: ToolCall) -> dict[str, Any]:
        function = {"name": call.name, "arguments": self._arguments(call.arguments)}
        return {"id": call.id, "type": "function", "function": function}

    def _arguments(self, text: str) -> object:
        """As an object or as text, whichever the template renders right; broken JSON as text."""
        if not self._wants_dict_arguments():
            return text
        parsed = _parsed(text)
        if isinstance(parsed, dict) or self._takes_broken_arguments():
            return parsed
        return {"arguments": text}

    def _wants_dict_arguments(self) -> bool:
        if self._dict_arguments is None:
            drawn = self._probe({"probe_key": "probe_value"})
            # Python's spelling of a dict betrays a template that pastes what it gets.
            self._dict_arguments = drawn is not None and "{'probe_key'" not in drawn
        return self._dict_arguments

    def _takes_parts(self) -> bool:
        """Whether content in parts is read; a template that pastes it writes Python's lists."""
        if self._parts is None:
            content = [{"type": "text", "text": "probe_text"}]
            try:
                messages = [{"role": "user", "content": content}]
                self._parts = "'probe_text'" not in self._apply(
                    messages, None, False, dict(self._defaults)
                )
            except TEMPLATE_ERRORS:
                self._parts = True  # it does not paste; what it refuses, it refuses by itself
        return self._parts

    def _takes_broken_arguments(self) -> bool:
        if self._broken_arguments is None:
            self._broken_arguments = self._probe('{"probe_key') is not None
        return self._broken_arguments

    def _probe(self, arguments: object) -> str | None:
        """A call with these arguments as the template draws it; None when it refuses."""
        function = {"name": "probe", "arguments": arguments}
        call = {"id": "call00000", "type": "function", "function": function}
        messages = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "b", "tool_call_id": "call00000", "name": "probe"},
        ]
        try:
            return self._apply(messages, None, False, dict(self._defaults))
        except TEMPLATE_ERRORS:
            return None

    def _read_source(self) -> str:
        return "\n".join(template_sources(self._tokenizer))


def template_sources(tokenizer: Any) -> list[str]:
    """The Jinja texts of a tokenizer, bare or wrapped: one, none, or several named ones."""
    source = bare(tokenizer).chat_template
    if isinstance(source, dict):
        return list(source.values())
    return [source] if source else []


def _renders_jinja(tokenizer: Any) -> bool:
    """As transformers does for nearly all; some classes have a way of their own, in Python."""
    classes = type(tokenizer).__mro__
    owner = next(one for one in classes if "apply_chat_template" in vars(one))
    return bool(owner.__name__ == "PreTrainedTokenizerBase")


def _open_ended(turn: Message) -> Message:
    """The turn with a mark where the model is to go on: in its content, or else its thoughts."""
    if turn.text or not turn.reasoning:
        parts: tuple[Part, ...] = (TextPart(turn.text + CONTINUE_HERE),)
        return Message(turn.role, parts, turn.reasoning, turn.tool_calls, name=turn.name)
    return Message(turn.role, turn.parts, turn.reasoning + CONTINUE_HERE, name=turn.name)


def _part_dicts(parts: tuple[Part, ...]) -> list[dict[str, str]]:
    return [
        {"type": "image"} if isinstance(part, ImagePart) else {"type": "text", "text": part.text}
        for part in parts
    ]


def _parsed(arguments: str) -> object:
    """The object that the text spells, mended if need be; the text itself if it spells none."""
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        mended = mend_object(arguments)
        value = json.loads(mended) if mended else arguments
    except RecursionError:
        return arguments
    return value if isinstance(value, dict) else arguments
