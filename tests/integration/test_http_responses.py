"""`/v1/responses` as the OpenAI SDK and Codex use it."""

from __future__ import annotations

import json

import pytest
from scripted_backend import (
    MODEL,
    Reason,
    Script,
    ScriptedBackend,
    calls,
    logprob,
    parts_text,
    serve,
    text,
    tool_call,
)

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "shell", "parameters": {"type": "object"}, "strict": True}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: ANY"},
}
NAMESPACE = {
    "type": "namespace",
    "name": "mcp__hub__",
    "description": "A hub.",
    "tools": [{"type": "function", "name": "find", "parameters": {"type": "object"}}],
}
HOSTED = [{"type": "web_search"}, {"type": "image_generation"}, {"type": "local_shell"}]


def numbered(events: list[dict]) -> list[dict]:
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def without_ids(body: dict) -> dict:
    """Two runs differ in their ids and in when they were made, and in nothing else."""
    number = body["id"].removeprefix("resp_")
    return json.loads(json.dumps(body).replace(number, "X")) | {"created_at": 0}


async def test_a_response_is_answered_in_openai_shape(dialect, server):
    body = await dialect.post(server, {"input": "hi", "metadata": {"k": "v"}})
    assert body["object"] == "response"
    assert body["status"] == "completed"
    assert body["model"] == MODEL
    [item] = body["output"]
    assert item["content"][0]["text"] == "Hello, world!"
    assert body["usage"]["input_tokens_details"] == {"cached_tokens": 4}
    assert body["metadata"] == {"k": "v"}
    assert body["error"] is None


async def test_events_open_fill_and_close_each_item(dialect, server):
    events = numbered(await dialect.stream(server, {"input": "hi"}))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 4,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert "".join(e["delta"] for e in events if e["type"].endswith("delta")) == "Hello, world!"
    assert events[0]["response"]["output"] == []
    assert events[-1]["response"]["output"] == [events[-2]["item"]]


async def test_a_rich_answer_is_the_same_streamed_and_whole(dialect, server):
    server.backend.default = calls(
        m.Delta(reasoning="Hm"),
        m.Delta(reasoning="m."),
        m.Delta(content="On it\U0001f600"),
        *tool_call("shell", '{"cmd"', ': "ls"}'),
        *tool_call("apply_patch", '{"input": "*** Begin', '\\n*** End"}', index=1, call_id="c2"),
        *tool_call("mcp__hub__find", "{}", index=2, call_id="c3"),
        reasoning_tokens=2,
    )
    body = {"input": "go", "tools": [TOOL, PATCH, NAMESPACE, *HOSTED]}
    whole = await dialect.post(server, body)
    events = numbered(await dialect.stream(server, body))
    assert without_ids(events[-1]["response"]) == without_ids(whole)
    reasoning, message, shell, patch, find = whole["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hmm."}]
    assert message["content"][0]["text"] == "On it\U0001f600"
    assert (shell["type"], shell["arguments"]) == ("function_call", '{"cmd": "ls"}')
    assert patch["type"] == "custom_tool_call"
    assert patch["input"] == "*** Begin\n*** End"
    assert (patch["name"], patch["call_id"]) == ("apply_patch", "c2")
    assert (find["name"], find["namespace"]) == ("find", "mcp__hub__")
    done = {e["item"]["id"]: e["item"] for e in events if e["type"].endswith("item.done")}
    assert list(done.values()) == events[-1]["response"]["output"]
    inputs = [e for e in events if e["type"] == "response.custom_tool_call_input.done"]
    assert [e["input"] for e in inputs] == ["*** Begin\n*** End"]
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}


async def test_hosted_tools_are_dropped_and_the_others_offered(dialect, server):
    await dialect.post(server, {"input": "go", "tools": [*HOSTED, TOOL, PATCH, NAMESPACE]})
    tools = server.backend.requests[0].chat.tools
    assert [tool.name for tool in tools] == ["shell", "apply_patch", "mcp__hub__find"]
    patch = json.loads(tools[1].parameters)
    assert patch["required"] == ["input"]
    assert "start: ANY" in tools[1].description


async def test_a_codex_request_becomes_messages_of_the_engine(dialect, server):
    body = {
        "instructions": "You are Codex.",
        "input": [
            message("developer", "permissions"),
            message("user", "env"),
            message("user", "fix it"),
            {
                "type": "reasoning",
                "summary": [],
                "encrypted_content": "gAAAA-of-another-service",
            },
            {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": '{"a":1}'},
            {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "P"},
            {"type": "web_search_call", "status": "completed", "id": "w"},
            {"type": "function_call_output", "call_id": "c1", "output": "ok"},
            {
                "type": "custom_tool_call_output",
                "call_id": "c2",
                "output": [{"type": "input_text", "text": "done"}],
            },
        ],
        "tools": [TOOL, PATCH, *HOSTED],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "thread-1",
        "client_metadata": {"x": "y"},
        "text": {"verbosity": "low"},
    }
    events = numbered(await dialect.stream(server, body))
    assert events[-1]["type"] == "response.completed"
    [request] = server.backend.requests
    messages = request.chat.messages
    assert [x.role for x in messages] == [
        *["system", "system", "user", "user", "assistant", "tool", "tool"]
    ]
    calls_ = messages[4].tool_calls
    assert [(c.id, c.name, json.loads(c.arguments)) for c in calls_] == [
        ("c1", "shell", {"a": 1}),
        ("c2", "apply_patch", {"input": "P"}),
    ]
    assert parts_text(messages[6]) == "done"
    assert request.chat.reasoning_effort == "medium"
    assert request.max_tokens is None


def message(role: str, content: str) -> dict:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": content}]}


async def test_reasoning_survives_in_the_opaque_field_of_a_client_that_does_not_store(
    dialect, server
):
    server.backend.default = calls(m.Delta(reasoning="deep\U0001f914"), *tool_call("shell", "{}"))
    body = {
        "input": "go",
        "tools": [TOOL],
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    first = await dialect.post(server, body)
    reasoning, call = first["output"]
    kept = {k: v for k, v in reasoning.items() if k != "content"}  # as Codex sends it back
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
    history = [message("user", "go"), kept, call, output]
    await dialect.post(server, {**body, "input": history})
    [_, assistant, result] = server.backend.requests[1].chat.messages
    assert assistant.reasoning == "deep\U0001f914"
    assert assistant.tool_calls[0].name == "shell"
    assert result.role == "tool"


async def test_a_stored_response_can_be_continued_read_and_deleted(dialect, http, server):
    first = await dialect.post(server, {"input": "one", "instructions": "be brief"})
    second = await dialect.post(server, {"input": "two", "previous_response_id": first["id"]})
    chat = server.backend.requests[1].chat
    assert [(x.role, parts_text(x)) for x in chat.messages] == [
        ("user", "one"),
        ("assistant", "Hello, world!"),
        ("user", "two"),
    ]
    assert second["previous_response_id"] == first["id"]
    url = f"{server.url}{PATH}/{second['id']}"
    async with http.get(url) as reply:
        assert await reply.json() == second
    async with http.get(url + "/input_items?order=asc") as reply:
        assert len((await reply.json())["data"]) == 3
    async with http.delete(url) as reply:
        assert (await reply.json())["deleted"]
    async with http.get(url) as reply:
        assert reply.status == 404


async def test_what_is_not_to_be_stored_is_not(dialect, server):
    first = await dialect.post(server, {"input": "one", "store": False})
    body = {"input": "two", "previous_response_id": first["id"]}
    answer = await dialect.post(server, body, status=400)
    assert answer["error"]["code"] == "previous_response_not_found"
    assert answer["error"]["param"] == "previous_response_id"


async def test_the_store_forgets_the_oldest_beyond_its_bounds(dialect):
    async with serve(options=HttpOptions(port=0, max_stored_responses=2)) as server:
        ids = [(await dialect.post(server, {"input": "x"}))["id"] for _ in range(3)]
        await dialect.post(server, {"input": "y", "previous_response_id": ids[0]}, status=400)
        await dialect.post(server, {"input": "y", "previous_response_id": ids[2]})


async def test_a_cut_answer_is_incomplete(dialect, server):
    server.backend.default = text("half", reason=Reason.LENGTH)
    body = {"input": "x", "max_output_tokens": 5}
    whole = await dialect.post(server, body)
    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (await dialect.stream(server, body))[-1]["type"] == "response.incomplete"
    assert server.backend.requests[0].max_tokens == 5


async def test_a_fault_in_a_stream_is_a_failed_response_then_an_error(dialect):
    fault = m.Fault(kind=m.FaultKind.INTERNAL, message="the engine died")
    async with serve(ScriptedBackend(default=text("half", fault=fault))) as server:
        events = await dialect.stream(server, {"input": "x"})
    failed, error = events[-2:]
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["message"] == "the engine died"
    assert error["type"] == "error"
    assert error["error"]["code"] == "internal_error"


async def test_logprobs_ride_on_the_text_when_included(dialect, server):
    server.backend.default = Script((m.Delta(content="a", logprobs=[logprob("a")]),))
    body = {"input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = await dialect.post(server, body)
    [token] = whole["output"][0]["content"][0]["logprobs"]
    assert token["token"] == "a"
    assert len(token["top_logprobs"]) == 2
    assert server.backend.requests[0].top_logprobs == 2


async def test_logprobs_of_thoughts_and_calls_open_no_items(dialect, server):
    def piece(**news: object) -> m.Delta:
        return m.Delta(logprobs=[logprob("x")], **news)

    started = m.ToolCallDelta(index=0, id="call_1", name="look")
    arguments = [m.ToolCallDelta(index=0, arguments=part) for part in ("{", '"at"', ": 1}")]
    server.backend.default = Script(
        (
            piece(reasoning="hm"),
            piece(reasoning=", well"),
            piece(content="I look."),
            piece(tool_calls=[started]),
            *(piece(tool_calls=[part]) for part in arguments),
            piece(),
        )
    )
    body = {"input": "x", "include": ["message.output_text.logprobs"]}
    whole = await dialect.post(server, body)
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert whole["output"][2]["arguments"] == '{"at": 1}'
    [part] = whole["output"][1]["content"]
    assert len(part["logprobs"]) == 1


async def test_what_a_codex_patch_said_is_not_escaped_for_the_model(dialect, server):
    item = {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "有错"}
    answer = {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}
    user = {"role": "user", "content": "x"}
    await dialect.post(server, {"input": [user, item, answer], "tools": [PATCH]})
    sent = [c for one in server.backend.requests[0].chat.messages for c in one.tool_calls]
    assert [call.arguments for call in sent] == ['{"input": "有错"}']


async def test_a_schema_for_the_text_is_a_constraint(dialect, server):
    schema = {"type": "object"}
    shape = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    await dialect.post(server, {"input": "x", "text": {"format": shape}})
    assert json.loads(server.backend.requests[0].constraint.json_schema) == schema


async def test_stop_and_seed_hold_here_as_on_chat(dialect, server):
    await dialect.post(server, {"input": "x", "stop": "END", "seed": 7})
    [request] = server.backend.requests
    assert request.stop == ["END"]
    assert request.sampling.seed == 7


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": []},
        {"input": 5},
        {"input": [{"role": "wizard", "content": "x"}]},
        {"input": [{"role": "user"}]},
        {"input": [{"role": "user", "content": 5}]},
        {"input": [{"type": "item_reference", "id": "rs_1"}]},
        {"input": [{"type": "function_call", "call_id": "1", "arguments": "{}"}]},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
        {"input": "x", "background": True},
        {"input": "x", "conversation": "c"},
        {"input": "x", "n": 2},
        {"input": "x", "max_output_tokens": -7},
        {"input": "x", "tools": [{"type": "function"}]},
        {"input": "x", "tool_choice": {"type": "function", "name": "absent"}},
        {"input": "x", "tool_choice": {"type": "web_search"}, "tools": HOSTED},
        {"input": "x", "text": {"format": {"type": "yaml"}}},
        {"input": "x", "reasoning": {"effort": "enormous"}},
    ],
)
async def test_what_cannot_be_done_is_a_400_that_names_the_field(dialect, server, body):
    answer = await dialect.post(server, body, status=400)
    assert answer["error"]["param"]
    assert not server.backend.requests


async def test_a_forced_tool_of_a_namespace_is_found(dialect, server):
    choice = {"type": "function", "name": "find", "namespace": "mcp__hub__"}
    await dialect.post(server, {"input": "x", "tools": [NAMESPACE], "tool_choice": choice})
    chat = server.backend.requests[0].chat
    assert (chat.tool_choice, chat.tool_name) == (m.ToolChoice.NAMED, "mcp__hub__find")


async def test_input_tokens_are_counted_without_generating(http, server):
    async with http.post(server.url + PATH + "/input_tokens", json={"input": "hi"}) as reply:
        assert (await reply.json())["input_tokens"] == len(b"<user>hi")
    assert not server.backend.requests
