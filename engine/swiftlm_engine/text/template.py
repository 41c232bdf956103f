"""Template: a conversation to the token ids of its prompt, by the model's own chat template.

Messages a template refuses are said otherwise (turns.py) before the caller hears about it. What
a template drops without a word counts as refused too: every system and user text must be found
in the prompt. Tool arguments reach the template as the type it renders right.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from swiftlm_engine.text.boundaries import Boundaries, Encoded
from swiftlm_engine.text.detokenizer import bare
from swiftlm_engine.text.messages import (
    Chat,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCall,
    ToolSpec,
)
from swiftlm_engine.text.turns import Turns, variants

# A template is foreign code: it raises what it was written to raise, or what its author forgot.
TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError)
CONTINUE_HERE = "\u2402swiftlm continues here\u2403"
THINKING_OPENERS = (
    "<think>",
    "<thinking>",
    "[THINK]",
    "<|channel>thought",
    "<longcat_think>",
    "<|think:start|>",
    "<|open|>think<|sep|>",
)


class TemplateRefused(ValueError):
    """The chat template cannot render this conversation; the caller must change it."""

    def __init__(self, reason: str, message_index: int | None = None) -> None:
        where = "" if message_index is None else f"messages[{message_index}]: "
        super().__init__(f"{where}{reason}")
        self.message_index = message_index


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    token_ids: tuple[int, ...]
    # Ascending token counts at which another prompt may part from this one: after the system
    # message, the tools, each turn, and before what opens the answer.
    boundaries: tuple[int, ...]
    thinking_preopened: bool
    text: str


class ChatTemplate:
    """One model's template. `tokenizer` is a Hugging Face one, bare or wrapped by mlx-lm."""

    def __init__(self, tokenizer: Any, defaults: Mapping[str, object] | None = None) -> None:
        # Any: transformers and mlx-lm are untyped here.
        self._wrapper = tokenizer
        self._tokenizer = bare(tokenizer)
        # mlx-lm's renderers in Python, for models that come without a Jinja template.
        self._custom = vars(tokenizer).get("_chat_template")
        self._defaults = dict(defaults or {})
        self._source = self._read_source()
        self._dict_arguments: bool | None = None
        self._boundaries = Boundaries()

    @property
    def exists(self) -> bool:
        return self._custom is not None or bool(self._tokenizer.chat_template)

    @property
    def source(self) -> str:
        """The Jinja text, all variants of it; empty for a renderer in Python."""
        return self._source

    def render(self, chat: Chat) -> RenderedPrompt:
        """Raises TemplateRefused when no way to say the conversation renders."""
        if not self.exists:
            raise TemplateRefused("this model has no chat template; send a plain prompt instead")
        if not chat.messages:
            raise TemplateRefused("messages is empty")
        turns, as_parts, text = self._first_faithful(chat)
        draw = _Draw(self, chat, as_parts)
        encoded = self._encode(text)
        boundaries = self._boundaries.find(encoded, turns, draw)
        preopened = text.rstrip().endswith(THINKING_OPENERS)
        return RenderedPrompt(encoded.token_ids, boundaries, preopened, text)

    def _first_faithful(self, chat: Chat) -> tuple[Turns, bool, str]:
        unfaithful: tuple[Turns, bool, str] | None = None
        error: Exception | None = None
        for turns, as_parts in self._ways(chat):
            try:
                text = self.draw(chat, turns, as_parts, answer=True)
            except TEMPLATE_ERRORS as e:
                error = error or e
                continue
            if _is_faithful(text, turns):
                return turns, as_parts, text
            unfaithful = unfaithful or (turns, as_parts, text)
        if unfaithful is not None:
            return unfaithful
        raise TemplateRefused(_reason(error), self._refused_index(chat)) from error

    def _ways(self, chat: Chat) -> Iterator[tuple[Turns, bool]]:
        given = self._known_roles(chat.messages)
        images = next((i for i, m in enumerate(given) if m.has_images), None)
        if images is not None and "image" not in self._source:
            raise TemplateRefused("this model reads no images", images)
        if images is None:
            yield from ((turns, False) for turns in variants(given))
        yield from ((turns, True) for turns in variants(given))

    def _known_roles(self, turns: Turns) -> Turns:
        if "developer" in self._source:
            return turns
        return tuple(
            Message("system", m.parts, name=m.name) if m.role == "developer" else m for m in turns
        )

    def _refused_index(self, chat: Chat) -> int | None:
        """The first message without which the rest before it renders."""
        for end in range(len(chat.messages) - 1, 0, -1):
            for turns in variants(self._known_roles(chat.messages[:end])):
                try:
                    self.draw(chat, turns, False, answer=True)
                except TEMPLATE_ERRORS:
                    continue
                return end
        return 0

    def draw(self, chat: Chat, turns: Turns, as_parts: bool, *, answer: bool) -> str:
        """The text of these turns; with `answer`, up to where the model goes on."""
        goes_on = answer and chat.continue_final_message and turns[-1].role == "assistant"
        if goes_on:
            turns = (*turns[:-1], _open_ended(turns[-1]))
        messages = [self._as_dict(turn, as_parts) for turn in turns]
        tools = [tool_dict(tool) for tool in chat.tools] or None
        text = self._apply(messages, tools, answer and not goes_on, self._variables(chat))
        if goes_on:
            if CONTINUE_HERE not in text:
                raise ValueError("the template drops the message that is to be continued")
            text = text[: text.index(CONTINUE_HERE)]
        return text

    def _variables(self, chat: Chat) -> dict[str, object]:
        variables = self._defaults | dict(chat.template_kwargs)
        thinking = chat.enable_thinking
        if thinking is None and chat.reasoning_effort == "none":
            thinking = False
        if thinking is not None:
            # Two names are in use; a template looks at one of them.
            variables |= {"enable_thinking": thinking, "thinking": thinking}
        if chat.reasoning_effort not in (None, "none"):
            variables["reasoning_effort"] = chat.reasoning_effort
        return variables

    def _apply(
        self, messages: list[Any], tools: list[Any] | None, answer: bool, variables: dict[str, Any]
    ) -> str:
        common: dict[str, Any] = {"add_generation_prompt": answer, "tokenize": False}
        if self._custom is not None:
            variables.pop("thinking", None)
            if tools is not None:
                common["tools"] = tools
            return str(self._wrapper.apply_chat_template(messages, **common, **variables))
        return str(
            self._tokenizer.apply_chat_template(messages, tools=tools, **common, **variables)
        )

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

    def _call_dict(self, call: ToolCall) -> dict[str, Any]:
        arguments: object = call.arguments
        if self.wants_dict_arguments:
            arguments = _parsed(call.arguments)
        function = {"name": call.name, "arguments": arguments}
        return {"id": call.id, "type": "function", "function": function}

    @property
    def wants_dict_arguments(self) -> bool:
        """Whether the template renders arguments right as an object; asked of it once."""
        if self._dict_arguments is None:
            self._dict_arguments = self._probe_arguments()
        return self._dict_arguments

    def _probe_arguments(self) -> bool:
        self._dict_arguments = True
        call = ToolCall("call00000", "probe", '{"probe_key": "probe_value"}')
        turns = (
            Message("user", (TextPart("a"),)),
            Message("assistant", (TextPart(""),), tool_calls=(call,)),
            Message("tool", (TextPart("b"),), tool_call_id="call00000", name="probe"),
        )
        try:
            text = self.draw(Chat(turns), turns, False, answer=False)
        except TEMPLATE_ERRORS:
            return False
        # Python's spelling of a dict betrays a template that pastes what it gets.
        return "{'probe_key'" not in text

    def _encode(self, text: str) -> Encoded:
        encoding = self._tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        ends = [end for _, end in encoding["offset_mapping"]]
        return Encoded(text, tuple(encoding["input_ids"]), ends)

    def _read_source(self) -> str:
        source = self._tokenizer.chat_template
        if isinstance(source, dict):  # several named templates
            return "\n".join(source.values())
        return source or ""


@dataclass(frozen=True, slots=True)
class _Draw:
    """Draws parts of one chat the way the whole was drawn."""

    template: ChatTemplate
    chat: Chat
    as_parts: bool

    def __call__(self, turns: Turns, tools: bool = True) -> str | None:
        """None where the template refuses such a part of a conversation."""
        chat = self.chat if tools else Chat(turns, template_kwargs=self.chat.template_kwargs)
        try:
            return self.template.draw(chat, turns, self.as_parts, answer=False)
        except TEMPLATE_ERRORS:
            return None

    @property
    def key(self) -> str:
        """What the text depends on besides the turns."""
        chat = self.chat
        return repr((chat.tools, chat.enable_thinking, chat.reasoning_effort, chat.template_kwargs))


def _is_faithful(text: str, turns: Turns) -> bool:
    said = (turn.text for turn in turns if turn.role in ("user", "system", "developer"))
    return all(words.strip() in text for words in said)


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


def tool_dict(tool: ToolSpec) -> dict[str, Any]:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _parsed(arguments: str) -> object:
    """The object that the JSON text spells; the text itself where it spells none."""
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def _reason(error: Exception | None) -> str:
    return f"the chat template refuses this conversation: {error}"
