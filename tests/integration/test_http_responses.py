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
from swiftlmd.http.context import CONTEXT

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


DEEP = {"type": "namespace", "name": "wide", "tools": [{**NAMESPACE, "name": "deep"}]}


@pytest.mark.parametrize(
    ("allowed", "seen"),
    [
        ({"type": "function", "name": "find", "namespace": "mcp__hub__"}, ["mcp__hub__find"]),
        ({"type": "function", "name": "mcp__hub__find"}, ["mcp__hub__find"]),
        ({"type": "namespace", "name": "mcp__hub__"}, ["mcp__hub__find"]),
        ({"type": "namespace", "name": "mcp__hub"}, ["mcp__hub__find"]),
        ({"type": "namespace", "name": "wide"}, ["wide__deep__find"]),
        ({"type": "namespace", "name": "deep", "namespace": "wide"}, ["wide__deep__find"]),
        ({"type": "custom", "name": "apply_patch"}, ["apply_patch"]),
        ({"type": "function", "function": {"name": "shell"}}, ["shell"]),
        ({"type": "web_search"}, []),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
async def test_allowed_tools_are_found_wherever_they_were_offered(
    dialect, server, allowed, seen, nested
):
    inner = {"mode": "auto", "tools": [allowed]}
    choice = {"type": "allowed_tools", **({"allowed_tools": inner} if nested else inner)}
    tools = [TOOL, PATCH, NAMESPACE, DEEP, *HOSTED]
    await dialect.post(server, {"input": "x", "tools": tools, "tool_choice": choice})
    chat = server.backend.requests[0].chat
    assert [tool.name for tool in chat.tools] == seen


@pytest.mark.parametrize(
    "allowed",
    [
        {"type": "function", "name": "nowhere"},
        {"type": "function", "name": "find"},
        {"type": "namespace", "name": "mcp"},
        {"type": "namespace"},
        {"type": "function", "name": []},
        {"type": "function", "name": "find", "namespace": 5},
        {"type": "function", "function": "x"},
        "shell",
    ],
)
async def test_an_allowed_tool_that_was_not_offered_is_refused(dialect, server, allowed):
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [allowed]}
    tools = [TOOL, NAMESPACE]
    body = {"input": "x", "tools": tools, "tool_choice": choice}
    answer = await dialect.post(server, body, status=400)
    assert answer["error"]["param"] == "tool_choice"


@pytest.mark.parametrize("named", [{"name": 5}, {"name": "find", "namespace": 5}, {}])
async def test_a_forced_tool_without_a_name_is_refused(dialect, server, named):
    choice = {"type": "function", **named}
    body = {"input": "x", "tools": [TOOL], "tool_choice": choice}
    answer = await dialect.post(server, body, status=400)
    assert answer["error"]["param"] == "tool_choice"


async def test_input_tokens_are_counted_without_generating(http, server):
    async with http.post(server.url + PATH + "/input_tokens", json={"input": "hi"}) as reply:
        assert (await reply.json())["input_tokens"] == len(b"<user>hi")
    assert not server.backend.requests


async def test_references_are_resolved_from_what_the_store_has(dialect, server):
    server.backend.default = calls(m.Delta(reasoning="hm"), *tool_call("shell", "{}"))
    first = await dialect.post(server, {"input": "go", "tools": [TOOL]})
    thoughts, call = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
    reference = {"type": "item_reference", "id": thoughts["id"]}
    # As the AI SDK sends its second step; OpenAI lets a reference go without its type.
    second = [message("user", "go"), reference, {"id": call["id"]}, result]
    answer = await dialect.post(server, {"input": second, "tools": [TOOL]})
    [_, assistant, said] = server.backend.requests[1].chat.messages
    assert assistant.reasoning == "hm"
    assert [x.name for x in assistant.tool_calls] == ["shell"]
    assert said.role == "tool"
    # What the second response kept is whole: the first may go.
    server.app[CONTEXT].responses.remove(first["id"])
    await dialect.post(server, {"input": [reference, message("user", "and?")]})
    assert server.backend.requests[2].chat.messages[0].reasoning == "hm"
    server.app[CONTEXT].responses.remove(answer["id"])
    lost = await dialect.post(server, {"input": [message("user", "x"), reference]}, status=200)
    assert lost["status"] == "completed"  # the third response has it as well


async def test_a_reference_that_nothing_here_answers_is_refused_by_its_place(dialect, server):
    items = [message("user", "x"), {"type": "item_reference", "id": "msg_gone"}]
    answer = await dialect.post(server, {"input": items}, status=400)
    assert answer["error"]["param"] == "input.1.id"
    assert answer["error"]["code"] == "item_not_found"


async def test_listed_input_items_can_be_referred_to_and_paged(dialect, http, server):
    first = await dialect.post(server, {"input": [message("user", str(n)) for n in range(3)]})
    url = f"{server.url}{PATH}/{first['id']}/input_items?order=asc"
    async with http.get(url + "&limit=2") as reply:
        page = await reply.json()
    assert (len(page["data"]), page["has_more"]) == (2, True)
    async with http.get(f"{url}&after={page['last_id']}") as reply:
        rest = await reply.json()
    assert (len(rest["data"]), rest["has_more"]) == (1, False)
    await dialect.post(server, {"input": [{"id": rest["first_id"]}]})
    assert parts_text(server.backend.requests[1].chat.messages[0]) == "2"


ADDED = {"type": "additional_tools", "role": "developer", "tools": [TOOL, PATCH, NAMESPACE]}


async def test_tools_that_come_as_an_item_are_offered(dialect, server):
    server.backend.default = calls(*tool_call("apply_patch", '{"input": "P"}'))
    items = [ADDED, message("user", "hi")]
    answer = await dialect.post(server, {"input": items, "tool_choice": "required"})
    offered = server.backend.requests[0].chat.tools
    assert [tool.name for tool in offered] == ["shell", "apply_patch", "mcp__hub__find"]
    assert answer["output"][0]["type"] == "custom_tool_call"


async def test_tools_added_again_take_the_place_of_the_older_ones(dialect, server):
    newer = {**TOOL, "description": "newer"}
    found = {"type": "tool_search_output", "call_id": "s", "execution": "client", "tools": [newer]}
    items = [ADDED, message("user", "hi"), ADDED, found]
    await dialect.post(server, {"input": items, "tools": [TOOL]})
    offered = server.backend.requests[0].chat.tools
    assert [tool.name for tool in offered] == ["shell", "apply_patch", "mcp__hub__find"]
    assert offered[0].description == "newer"


async def test_a_tool_search_of_the_client_is_a_call_of_its_own_type(dialect, server):
    server.backend.default = calls(*tool_call("tool_search", '{"query": "mail"}'))
    search = {"type": "tool_search", "execution": "client", "description": "Finds tools."}
    body = {"input": "hi", "tools": [search, {"type": "tool_search"}]}
    whole = await dialect.post(server, body)
    events = numbered(await dialect.stream(server, body))
    [item] = whole["output"]
    assert item["type"] == "tool_search_call"
    assert item["arguments"] == {"query": "mail"}
    assert events[-1]["response"]["output"][0]["arguments"] == {"query": "mail"}
    output = {"type": "tool_search_output", "call_id": item["call_id"], "tools": [TOOL]}
    await dialect.post(server, {**body, "input": [message("user", "hi"), item, output]})
    request = server.backend.requests[-1]
    [_, assistant, result] = request.chat.messages
    assert assistant.tool_calls[0].name == "tool_search"
    assert json.loads(assistant.tool_calls[0].arguments) == {"query": "mail"}
    assert "shell" in parts_text(result)
    assert [tool.name for tool in request.chat.tools] == ["tool_search", "shell"]


async def test_namespaces_in_namespaces_and_tools_in_the_shape_of_chat_are_offered(dialect, server):
    inner = {"type": "namespace", "name": "deep", "tools": [PATCH]}
    outer = {"type": "namespace", "name": "wide", "tools": [inner]}
    chat = {"type": "function", "function": {"name": "nested", "parameters": {"type": "object"}}}
    await dialect.post(server, {"input": "x", "tools": [outer, chat]})
    offered = server.backend.requests[0].chat.tools
    assert [tool.name for tool in offered] == ["wide__deep__apply_patch", "nested"]


SENDERS_OWN = [
    {"type": "web_search_call", "id": 5, "action": {"type": "search"}, "output": [1], "name": {}},
    {"type": "ghost_snapshot", "ghost_commit": {"id": "x"}, "content": 7},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"},
    {"type": "compaction_summary", "encrypted_content": None},
    {"type": "compaction_trigger"},
    {"type": "image_generation_call", "result": "aGk=", "arguments": {}},
    {"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "far"}]},
    {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAAA"},
    {"type": "reasoning", "summary": None, "content": [{"type": "x", "y": 1}], "status": {}},
    {"type": "something_new", "input": {"a": 1}, "output": {"b": 2}, "arguments": [3]},
]


@pytest.mark.parametrize("item", SENDERS_OWN)
async def test_what_only_the_sender_needs_is_skipped_whatever_it_holds(dialect, server, item):
    await dialect.post(server, {"input": [item, message("user", "hi")]})
    [*_, last] = server.backend.requests[0].chat.messages
    assert parts_text(last) == "hi"
    assert not server.backend.requests[0].chat.tools


@pytest.mark.parametrize("name", ["tools", "instructions"])
async def test_an_unknown_item_with_what_the_answer_needs_is_refused_by_name(dialect, server, name):
    item = {"type": "something_new", name: [TOOL]}
    answer = await dialect.post(server, {"input": [message("user", "x"), item]}, status=400)
    assert answer["error"]["param"] == "input.1.type"
    assert "something_new" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("call", "name", "arguments"),
    [
        (
            {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec"}},
            "local_shell",
            {"type": "exec"},
        ),
        ({"type": "shell_call", "call_id": "c", "action": {"commands": []}}, "shell", None),
        ({"type": "apply_patch_call", "call_id": "c", "operation": {"p": 1}}, "apply_patch", None),
        ({"type": "local_shell_call"}, "local_shell", {}),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": {"a": 1}},
            "f",
            {"a": 1},
        ),
    ],
)
async def test_calls_that_the_client_ran_stay_in_the_history(
    dialect, server, call, name, arguments
):
    output = {"type": call["type"] + "_output", "call_id": "c", "output": [{"stdout": "hi"}]}
    await dialect.post(server, {"input": [message("user", "x"), call, output]})
    [_, assistant, result] = server.backend.requests[0].chat.messages
    assert assistant.tool_calls[0].name == name
    if arguments is not None:
        assert json.loads(assistant.tool_calls[0].arguments) == arguments
    assert "hi" in parts_text(result)


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("text", "text"),
        (None, ""),
        ({"content": "failed", "success": False}, "failed"),
        ({"a": 1}, '{"a": 1}'),
        ([{"type": "input_text", "text": "part"}], "part"),
        (5, "5"),
    ],
)
async def test_a_result_of_any_shape_is_shown_to_the_model(dialect, server, output, shown):
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    item = {"type": "function_call_output", "call_id": "c", "output": output}
    await dialect.post(server, {"input": [message("user", "x"), call, item]})
    assert parts_text(server.backend.requests[0].chat.messages[-1]) == shown


async def test_an_error_in_a_continued_conversation_names_the_place_in_the_new_input(
    dialect, server
):
    first = await dialect.post(server, {"input": [message("user", str(n)) for n in range(3)]})
    body = {"previous_response_id": first["id"], "input": [{"role": "wizard", "content": "x"}]}
    answer = await dialect.post(server, body, status=400)
    assert answer["error"]["param"] == "input.0.role"


async def test_a_conversation_is_compacted_and_goes_on_from_its_summary(dialect, http, server):
    server.backend.default = text("We fixed main.go.")
    items = [message("user", "fix it"), message("assistant", "done"), message("user", "thanks")]
    body = {"input": items, "instructions": "be brief", "tools": [TOOL]}
    async with http.post(server.url + PATH + "/compact", json=body) as reply:
        compacted = await reply.json()
    assert compacted["object"] == "response.compaction"
    *users, summary = compacted["output"]
    assert [item["content"][0]["text"] for item in users] == ["fix it", "thanks"]
    assert summary["type"] == "compaction"
    assert "main.go" not in json.dumps(summary)
    asked = server.backend.requests[0]
    assert asked.chat.messages[-1].role == "user"
    assert asked.chat.tool_choice == m.ToolChoice.NONE
    await dialect.post(server, {"input": [*compacted["output"], message("user", "and now?")]})
    texts = [parts_text(x) for x in server.backend.requests[1].chat.messages]
    assert "We fixed main.go." in texts[2]
    assert texts[3] == "and now?"


async def test_a_trigger_at_the_end_of_the_input_asks_for_one_compaction_item(dialect, server):
    server.backend.default = text("We fixed ", "main.go.", reason=Reason.LENGTH)
    body = {"input": [message("user", "fix it"), {"type": "compaction_trigger"}]}
    events = numbered(await dialect.stream(server, body))
    assert [event["type"].removeprefix("response.") for event in events] == [
        *["created", "in_progress", "output_item.added", "output_item.done", "completed"]
    ]
    whole = await dialect.post(server, body)
    assert without_ids(whole) == without_ids(events[-1]["response"])
    [item] = whole["output"]
    await dialect.post(server, {"input": [item, message("user", "go on")]})
    assert "main.go" in parts_text(server.backend.requests[-1].chat.messages[0])


async def test_thoughts_come_as_text_and_as_a_summary(dialect, server):
    server.backend.default = Script((m.Delta(reasoning="Hm"), m.Delta(reasoning="m.")))
    body = {"input": "x", "reasoning": {"effort": "medium", "summary": "auto"}}
    events = numbered(await dialect.stream(server, body))
    assert [event["type"].removeprefix("response.") for event in events] == [
        *["created", "in_progress", "output_item.added", "reasoning_summary_part.added"],
        *["reasoning_text.delta", "reasoning_summary_text.delta"] * 2,
        *["reasoning_text.done", "reasoning_summary_text.done", "reasoning_summary_part.done"],
        *["output_item.done", "completed"],
    ]
    [item] = events[-1]["response"]["output"]
    assert item["summary"] == [{"type": "summary_text", "text": "Hmm."}]
    assert events[-1]["response"]["reasoning"] == {"effort": "medium", "summary": "auto"}
    # The AI SDK sends the summary back, and nothing else.
    kept = {key: value for key, value in item.items() if key not in ("content", "status")}
    await dialect.post(server, {"input": [message("user", "x"), kept, message("user", "y")]})
    assert server.backend.requests[1].chat.messages[1].reasoning == "Hmm."
