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


class ResponseTool(Body):
    type: str
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
    custom: bool
    namespace: str


class ToolTable:
    """The tools of one request, by the name that the model sees."""

    def __init__(self, tools: Iterable[ResponseTool] | None) -> None:
        self.tools: list[m.Tool] = []
        self._offered: dict[str, Offered] = {}
        for number, tool in enumerate(tools or ()):
            self._add(tool, "", f"tools.{number}")
        checked(self.tools)

    def offered(self, name: str) -> Offered:
        """The client's tool behind a name that the model called."""
        return self._offered.get(name) or Offered(name, False, "")

    def choice(self, choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        """`tool_choice` with the name that the model sees; a hosted tool cannot be forced."""
        if not isinstance(choice, dict) or choice.get("type") not in ("function", "custom"):
            return choice
        name = qualified(str(choice.get("name")), choice.get("namespace"))
        return {**choice, "name": name}

    def _add(self, tool: ResponseTool, namespace: str, param: str) -> None:
        if tool.type == "namespace" and tool.name and not namespace:
            for number, inner in enumerate(tool.tools or ()):
                self._add(inner, tool.name, f"{param}.tools.{number}")
        elif tool.type in ("function", "custom"):
            self._add_callable(tool, namespace, param)
        else:
            log.debug("hosted tool left out type=%r", tool.type[:64])

    def _add_callable(self, tool: ResponseTool, namespace: str, param: str) -> None:
        if not tool.name:
            raise invalid(f"{param}.name: Field required", f"{param}.name")
        name = qualified(tool.name, namespace)
        custom = tool.type == "custom"
        schema = _CUSTOM_SCHEMA if custom else tool.parameters
        description = _with_format(tool) if custom else tool.description
        self.tools.append(make_tool(name, description, schema, tool.strict, param))
        self._offered[name] = Offered(tool.name, custom, namespace)


def qualified(name: str, namespace: str | None) -> str:
    """`namespace__name`, the form that agents use for the tools of MCP servers."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def custom_input(arguments: str) -> str:
    """The one string of a custom tool's call; the raw text when the call was cut."""
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    value = parsed.get("input") if isinstance(parsed, dict) else None
    return value if isinstance(value, str) else arguments


def _with_format(tool: ResponseTool) -> str:
    """A grammar cannot travel in a JSON schema; the model reads it in the description."""
    description = tool.description or ""
    if tool.format is None or not tool.format.definition:
        return description
    syntax = tool.format.syntax or "grammar"
    return f"{description}\n\nThe input follows this {syntax}:\n{tool.format.definition}"
