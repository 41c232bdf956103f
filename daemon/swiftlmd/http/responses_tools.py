"""Tools of `/v1/responses`: functions, custom tools as one-string functions, namespaces.

The model sees plain functions; the table remembers what each was, so that a call goes back to
the client in the shape of the tool it offered. Hosted tools (web search, images, ...) would run
at OpenAI; they are left out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from swiftlm_proto import messages as m
from swiftlmd.http.errors import invalid
from swiftlmd.http.schema import Body
from swiftlmd.http.tools import checked, make_tool

log = logging.getLogger(__name__)

# The tool by which a client that holds many lets the model look for one.
TOOL_SEARCH = "tool_search"
_SEARCH_SCHEMA = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}},
    "required": ["query"],
}

_CUSTOM_SCHEMA = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool."}},
    "required": ["input"],
    "additionalProperties": False,
}


class CustomFormat(Body):
    type: str | None = None
    syntax: str | None = None
    definition: str | None = None


class ResponseFunction(Body):
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None  # Any: a JSON schema
    strict: bool | None = None
    format: CustomFormat | None = None


class ResponseTool(Body):
    type: str
    # Clients of chat nest what stands beside the type here.
    function: ResponseFunction | None = None
    custom: ResponseFunction | None = None
    execution: str | None = None  # of a tool search: who runs it
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None  # Any: a JSON schema
    strict: bool | None = None
    format: CustomFormat | None = None
    tools: list[ResponseTool] | None = None  # of a namespace


@dataclass(frozen=True, slots=True)
class Offered:
    """One tool as the client offered it."""

    name: str
    type: str = "function"  # or custom, or tool_search
    namespace: str = ""


class ToolTable:
    """The tools of one request, by the name that the model sees: those of the body, and those that
    items of the input add. A later item's tool takes the place of an older one's of its name, as
    clients repeat what they have added."""

    def __init__(
        self,
        tools: Iterable[ResponseTool] | None,
        added: Iterable[tuple[str, ResponseTool]] = (),
    ) -> None:
        self._tools: dict[str, m.Tool] = {}
        self._offered: dict[str, Offered] = {}
        self._namespaces: set[str] = set()
        for number, tool in enumerate(tools or ()):
            self._add(tool, "", f"tools.{number}", may_replace=False)
        for where, tool in added:
            self._add(tool, "", where, may_replace=True)
        checked(self.tools)

    @property
    def tools(self) -> list[m.Tool]:
        return list(self._tools.values())

    def offered(self, name: str) -> Offered:
        """The client's tool behind a name that the model called."""
        return self._offered.get(name) or Offered(name)

    def choice(self, choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        """`tool_choice` with the names that the model sees; a hosted tool cannot be forced."""
        if not isinstance(choice, dict):
            return choice
        if choice.get("type") == "allowed_tools":
            return self._allowed(choice)
        if choice.get("type") not in ("function", "custom"):
            return choice
        return {"type": "function", "name": _seen_name(choice)}

    def _allowed(self, choice: dict[str, Any]) -> dict[str, Any]:
        nested = choice.get("allowed_tools") or choice
        listed = nested.get("tools") if isinstance(nested, dict) else None
        if not isinstance(listed, list) or not all(isinstance(tool, dict) for tool in listed):
            return choice  # refused where choices are read
        names = [name for tool in listed for name in self._names(tool)]
        tools = [{"type": "function", "name": name} for name in names]
        return {"type": "allowed_tools", "mode": nested.get("mode"), "tools": tools}

    def _names(self, tool: dict[str, Any]) -> list[str]:
        """What the model sees of one entry of a list of allowed tools; nothing of a hosted one."""
        kind = tool.get("type")
        if kind == "namespace":
            inside = _seen_name(tool).removesuffix("__")
            if inside not in self._namespaces:
                raise invalid(f"tool_choice: no namespace is called {inside[:64]!r}", "tool_choice")
            offered = self._offered.items()
            return [name for name, one in offered if f"{one.namespace}__".startswith(f"{inside}__")]
        if kind == TOOL_SEARCH:
            return [TOOL_SEARCH] if TOOL_SEARCH in self._offered else []
        return [_seen_name(tool)] if kind in ("function", "custom", None) else []

    def _add(self, tool: ResponseTool, namespace: str, param: str, *, may_replace: bool) -> None:
        if tool.type == "namespace":
            if not tool.name:
                raise invalid(f"{param}.name: Field required", f"{param}.name")
            inside = qualified(tool.name, namespace)
            self._namespaces.add(inside.removesuffix("__"))
            for number, inner in enumerate(tool.tools or ()):
                self._add(inner, inside, f"{param}.tools.{number}", may_replace=may_replace)
        elif tool.type in ("function", "custom"):
            nested = tool.function if tool.type == "function" else tool.custom
            self._add_callable(nested or tool, tool.type, namespace, param, may_replace)
        elif tool.type == TOOL_SEARCH and tool.execution == "client":
            search = ResponseFunction(
                name=TOOL_SEARCH,
                description=tool.description,
                parameters=tool.parameters or _SEARCH_SCHEMA,
            )
            self._add_callable(search, TOOL_SEARCH, "", param, may_replace)
        else:
            log.debug("hosted tool left out type=%r", tool.type[:64])

    def _add_callable(
        self,
        tool: ResponseTool | ResponseFunction,
        kind: str,
        namespace: str,
        param: str,
        may_replace: bool,
    ) -> None:
        if not tool.name:
            raise invalid(f"{param}.name: Field required", f"{param}.name")
        name = qualified(tool.name, namespace)
        if name in self._tools and not may_replace:
            raise invalid(f"{param}.name: two tools are called {name!r}", f"{param}.name")
        custom = kind == "custom"
        schema = _CUSTOM_SCHEMA if custom else tool.parameters
        description = _with_format(tool) if custom else tool.description
        self._tools[name] = make_tool(name, description, schema, tool.strict, param)
        self._offered[name] = Offered(tool.name, kind, namespace)


def qualified(name: str, namespace: str | None) -> str:
    """`namespace__name`, the form that agents use for the tools of MCP servers."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def _seen_name(tool: dict[str, Any]) -> str:  # Any: JSON
    """The name that the model sees of a tool (or namespace) that a choice names."""
    nested = tool.get("function") or tool.get("custom")
    named = nested if isinstance(nested, dict) else tool
    name, namespace = named.get("name"), named.get("namespace") or tool.get("namespace")
    if not isinstance(name, str) or not isinstance(namespace, str | None):
        raise invalid("tool_choice: name and namespace must be text", "tool_choice")
    return qualified(name, namespace)


def custom_input(arguments: str) -> str:
    """The one string of a custom tool's call; the raw text when the call was cut."""
    value = arguments_object(arguments).get("input")
    return value if isinstance(value, str) else arguments


def arguments_object(arguments: str) -> dict[str, Any]:  # Any: JSON
    """The arguments of a call; empty for what is not an object, as where a call was cut."""
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _with_format(tool: ResponseTool | ResponseFunction) -> str:
    """A grammar cannot travel in a JSON schema; the model reads it in the description."""
    description = tool.description or ""
    if tool.format is None or not tool.format.definition:
        return description
    syntax = tool.format.syntax or "grammar"
    return f"{description}\n\nThe input follows this {syntax}:\n{tool.format.definition}"
