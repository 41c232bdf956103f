"""OpenAI's tools and tool_choice, as the engine's."""

from __future__ import annotations

import json
import re
from typing import Any

from swiftlm_proto import messages as m
from swiftlmd.http.errors import invalid, unsupported
from swiftlmd.http.schema import Body

MAX_TOOLS = 512
_MODES = {
    "auto": m.ToolChoice.AUTO,
    "none": m.ToolChoice.NONE,
    "required": m.ToolChoice.REQUIRED,
    "any": m.ToolChoice.REQUIRED,
}
_NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,256}")


class FunctionDefinition(Body):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None  # Any: a JSON schema
    strict: bool | None = None


class ChatTool(Body):
    """Some clients send the tools of Responses, or of Anthropic, to any dialect: those have the
    function's fields beside the type, or no type."""

    type: str = "function"
    function: FunctionDefinition | None = None
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None  # Any: a JSON schema
    input_schema: dict[str, Any] | None = None  # Any: a JSON schema
    strict: bool | None = None

    def defined(self) -> FunctionDefinition | None:
        if self.function is not None or not self.name:
            return self.function
        return FunctionDefinition(
            name=self.name,
            description=self.description,
            parameters=self.parameters or self.input_schema,
            strict=self.strict,
        )


def from_chat(tools: list[ChatTool] | None) -> list[m.Tool]:
    listed = []
    for number, tool in enumerate(tools or ()):
        if tool.type != "function":
            raise unsupported(
                f"tools.{number}.type: only 'function' tools are supported, not {tool.type[:64]!r}",
                f"tools.{number}.type",
            )
        function = tool.defined()
        if function is None:
            raise invalid(f"tools.{number}.function: Field required", f"tools.{number}.function")
        listed.append(
            make_tool(
                function.name,
                function.description,
                function.parameters,
                function.strict,
                f"tools.{number}.function",
            )
        )
    return checked(listed)


def make_tool(
    name: str,
    description: str | None,
    parameters: dict[str, Any] | None,
    strict: bool | None,
    param: str,
) -> m.Tool:
    if not _NAME.fullmatch(name):
        raise invalid(f"{param}.name: {name[:64]!r} is not a function name", f"{param}.name")
    schema = parameters or {"type": "object", "properties": {}}
    return m.Tool(
        name=name,
        description=description or "",
        parameters=json.dumps(schema),
        strict=bool(strict),
    )


def checked(tools: list[m.Tool]) -> list[m.Tool]:
    """Refuses what would make a call ambiguous or the prompt endless."""
    if len(tools) > MAX_TOOLS:
        raise invalid(f"tools: at most {MAX_TOOLS}", "tools")
    names = [tool.name for tool in tools]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise invalid(f"tools: two tools are called {twice!r}", "tools")
    return tools


def choose(choice: str | dict[str, Any] | None, chat: m.Chat) -> None:
    """Sets `tool_choice` and `tool_name`, and drops tools that the choice forbids."""
    if choice is None:
        return
    if isinstance(choice, str):
        _choose_mode(choice, chat)
    elif choice.get("type") == "allowed_tools":
        _choose_allowed(choice, chat)
    elif choice.get("type") in _MODES:  # Anthropic writes {"type": "auto"}
        _choose_mode(choice["type"], chat)
    else:
        _choose_named(choice, chat)


def _choose_mode(mode: str, chat: m.Chat) -> None:
    if mode not in _MODES:
        raise invalid(
            "tool_choice: use 'auto', 'none', 'required' or a named function", "tool_choice"
        )
    chat.tool_choice = _MODES[mode]
    if chat.tool_choice == m.ToolChoice.REQUIRED and not chat.tools:
        raise invalid("tool_choice: a call is required, and no tools were given", "tool_choice")


def _choose_named(choice: dict[str, Any], chat: m.Chat) -> None:
    # Chat nests the name under `function` or `custom`; Responses puts it beside the type.
    nested = choice.get("function") or choice.get("custom") or choice
    name = nested.get("name") if isinstance(nested, dict) else None
    if choice.get("type") not in ("function", "custom", "tool") or not isinstance(name, str):
        raise invalid(
            "tool_choice: an object must be {'type': 'function', 'function': {'name': ...}}",
            "tool_choice",
        )
    if name not in [tool.name for tool in chat.tools]:
        raise invalid(f"tool_choice: no tool is called {name[:64]!r}", "tool_choice")
    chat.tool_choice = m.ToolChoice.NAMED
    chat.tool_name = name


def _choose_allowed(choice: dict[str, Any], chat: m.Chat) -> None:
    allowed = choice.get("allowed_tools") or choice
    listed = allowed.get("tools") if isinstance(allowed, dict) else None
    if not isinstance(listed, list) or not all(isinstance(tool, dict) for tool in listed):
        raise invalid("tool_choice: allowed_tools needs a list of tools", "tool_choice")
    names = [_named(tool) for tool in listed]
    known = {tool.name for tool in chat.tools}
    if unknown := [name for name in names if name not in known]:
        raise invalid(f"tool_choice: no tool is called {unknown[0][:64]!r}", "tool_choice")
    chat.tools = [tool for tool in chat.tools if tool.name in names]
    _choose_mode(str(allowed.get("mode") or "auto"), chat)


def _named(tool: dict[str, Any]) -> str:
    nested = tool.get("function") or tool.get("custom") or tool
    name = nested.get("name") if isinstance(nested, dict) else None
    if not isinstance(name, str):
        raise invalid("tool_choice: each of the allowed tools needs a name", "tool_choice")
    return name
