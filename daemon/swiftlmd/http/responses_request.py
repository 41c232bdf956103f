"""The body of `/v1/responses`; `responses_input.py` reads its items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from swiftlmd.http.reasoning import ReasoningOptions
from swiftlmd.http.response_format import ResponseFormat
from swiftlmd.http.responses_tools import ResponseTool
from swiftlmd.http.sampling import Sampled
from swiftlmd.http.schema import Body, Int, Limit, TopLogprobs, Unset


class TextOptions(Body):
    format: ResponseFormat | None = None
    verbosity: str | None = None


class ResponsesRequest(Sampled):
    # Any: items are validated one by one, and kept as they came for the store.
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    max_output_tokens: Limit = None
    top_logprobs: Unset[TopLogprobs] = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | dict[str, Any] | None = None  # Any: several shapes, read by `choose`
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    include: list[str] | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    metadata: dict[str, Any] | None = None  # Any: echoed
    user: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # Any: what the template understands
    enable_thinking: bool | None = None
    thinking_budget: Unset[Int] = None

    ignored: ClassVar[frozenset[str]] = Sampled.ignored | {
        "truncation",  # nothing is ever cut silently; too long is an error
        "client_metadata",
        "max_tool_calls",
    }
    refused: ClassVar[Mapping[str, str]] = {
        **Sampled.refused,
        "background": "answers are not made in the background; use stream",
        "conversation": "use previous_response_id",
        "prompt": "stored prompts do not exist here; send instructions",
    }
