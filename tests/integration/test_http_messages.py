"""`/v1/messages` as Anthropic's clients, and Claude Code above all, use it."""

from __future__ import annotations

import base64
import json

import pytest
from scripted_backend import (
    MODEL,
    Reason,
    Script,
    calls,
    parts_text,
    text,
    tool_call,
)

from swiftlm_proto import messages as m

PATH = "/v1/messages?beta=true"
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(16)).decode()
TOOL = {"name": "read", "description": "Reads.", "input_schema": {"type": "object"}}


def ask(content: object = "hi", **more: object) -> dict[str, object]:
    return {"max_tokens": 100, "messages": [{"role": "user", "content": content}], **more}


def assemble(events: list[dict]) -> list[dict]:
    """The content blocks, put together as the SDKs do it."""
    blocks: list[dict] = []
    texts: list[str] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
            texts.append("")
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1, "only the last block may grow"
            if event["delta"]["type"] == "signature_delta":
                blocks[-1]["signature"] += event["delta"]["signature"]
                continue
            [text_of] = [v for k, v in event["delta"].items() if k != "type"]
            texts[-1] += text_of
        elif event["type"] == "content_block_stop":
            block = blocks[event["index"]]
            if block["type"] == "tool_use":
                block["input"] = json.loads(texts[-1] or "{}")
            else:
                block[block["type"]] = texts[-1]
    return blocks


async def test_a_message_is_answered_in_anthropic_shape(dialect, server):
    body = await dialect.post(server, ask())
    assert body["type"] == "message"
    assert body["content"] == [{"type": "text", "text": "Hello, world!"}]
    assert body["stop_reason"] == "end_turn"
    assert body["model"] == MODEL
    assert body["usage"]["input_tokens"] + body["usage"]["cache_read_input_tokens"] == 12
    assert body["usage"]["cache_read_input_tokens"] == 4


async def test_events_come_in_the_order_that_clients_demand(dialect, server):
    events = await dialect.stream(server, ask())
    kinds = [event["type"] for event in events]
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 4,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["usage"]["cache_read_input_tokens"] == 4
    assert events[-2]["usage"]["output_tokens"] == 4


async def test_thinking_text_and_tools_are_the_same_streamed_and_whole(dialect, server):
    server.backend.default = calls(
        m.Delta(reasoning="Let me "),
        m.Delta(reasoning="see."),
        m.Delta(content="Reading\u2026"),
        *tool_call("read", '{"path"', ': "a.py"}'),
        *tool_call("read", index=1, call_id="call_2"),
    )
    body = ask(tools=[TOOL], thinking={"type": "enabled", "budget_tokens": 2048})
    whole = await dialect.post(server, body)
    events = await dialect.stream(server, body)
    assert assemble(events) == whole["content"]
    assert [block["type"] for block in whole["content"]] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]
    # Without one, libraries send the thoughts back as text of the user, or not at all.
    assert whole["content"][0]["signature"]
    assert whole["content"][2]["input"] == {"path": "a.py"}
    assert whole["content"][3] == {"type": "tool_use", "id": "call_2", "name": "read", "input": {}}
    assert whole["stop_reason"] == "tool_use"
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert server.backend.requests[0].thinking_budget == 2048
    assert server.backend.requests[0].chat.enable_thinking is True


async def test_text_around_calls_keeps_its_place_streamed_and_whole(dialect, server):
    server.backend.default = calls(
        m.Delta(content="I "),
        m.Delta(content="look."),
        *tool_call("read", "{}"),
        m.Delta(content="Then I wait."),
        m.Delta(reasoning="Hm."),
        m.Delta(content="Done."),
    )
    whole = await dialect.post(server, ask(tools=[TOOL]))
    events = await dialect.stream(server, ask(tools=[TOOL]))
    assert assemble(events) == whole["content"]
    kinds = [block["type"] for block in whole["content"]]
    assert kinds == ["text", "tool_use", "text", "thinking", "text"]
    assert whole["content"][0]["text"] == "I look."


@pytest.mark.parametrize(
    ("script", "reason", "sequence"),
    [
        (text("x", reason=Reason.LENGTH), "max_tokens", None),
        (text("x", stop_sequence="END"), "stop_sequence", "END"),
    ],
)
async def test_stop_reasons_are_anthropics(dialect, server, script, reason, sequence):
    server.backend.default = script
    body = ask(stop_sequences=["END"])
    whole = await dialect.post(server, body)
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    delta = (await dialect.stream(server, body))[-2]["delta"]
    assert delta == {"stop_reason": reason, "stop_sequence": sequence}
    assert server.backend.requests[0].stop == ["END"]


async def test_an_empty_answer_is_still_a_whole_stream(dialect, server):
    server.backend.default = Script()
    events = await dialect.stream(server, ask())
    assert [e["type"] for e in events] == ["message_start", "message_delta", "message_stop"]


async def test_the_billing_line_of_claude_code_is_not_in_the_prompt(dialect, server):
    for nonce in ("cch=11111", "cch=22222"):
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; {nonce};"},
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Be brief."},
        ]
        await dialect.post(server, ask(system=system))
    first, second = (request.chat.messages for request in server.backend.requests)
    assert first == second
    assert parts_text(first[0]) == "You are an agent.\n\nBe brief."


async def test_a_whole_agent_history_becomes_messages_of_the_engine(dialect, server):
    body = {
        "max_tokens": 32000,
        "system": "sys",
        "tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}],
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "system", "content": "a reminder"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "redacted_thinking", "data": "zzz"},
                    {"type": "text", "text": "ok"},
                    {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}},
                    {"type": "tool_use", "id": "t2", "name": "read", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "A"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t2",
                        "is_error": True,
                        "content": [
                            {"type": "text", "text": "B"},
                            {
                                "type": "image",
                                "source": {
                                    "type": "base64",
                                    "media_type": "image/png",
                                    "data": PNG,
                                },
                            },
                        ],
                    },
                    {"type": "text", "text": "now?"},
                ],
            },
        ],
        "context_management": {"edits": []},
        "output_config": {"effort": "high"},
        "thinking": {"type": "adaptive"},
        "metadata": {"user_id": "user_session_7"},
    }
    await dialect.post(server, body)
    [request] = server.backend.requests
    chat = request.chat
    assert [message.role for message in chat.messages] == [
        "system",
        "user",
        "system",
        "assistant",
        "tool",
        "tool",
        "user",
    ]
    assistant, first, second = chat.messages[3:6]
    assert assistant.reasoning == "hm"
    assert parts_text(assistant) == "ok"
    assert [(c.id, json.loads(c.arguments)) for c in assistant.tool_calls] == [
        ("t1", {"path": "a"}),
        ("t2", {}),
    ]
    assert (first.tool_call_id, parts_text(first)) == ("t1", "A")
    assert [part.text for part in second.parts[:2]] == ["Error: ", "B"]
    assert second.parts[2].image.media_type == "image/png"
    assert [tool.name for tool in chat.tools] == ["read"]
    assert chat.reasoning_effort == "high"
    assert request.max_tokens == 32000


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("no such file", "Error: no such file"),
        (None, "Error: "),
        ("Error: no such file", "Error: no such file"),
        ("<tool_use_error>denied</tool_use_error>", "<tool_use_error>denied</tool_use_error>"),
    ],
)
async def test_the_model_is_told_that_a_tool_failed(dialect, server, content, told):
    result = {"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": content}
    await dialect.post(server, ask([result]))
    [request] = server.backend.requests
    assert "".join(part.text for part in request.chat.messages[0].parts) == told


@pytest.mark.parametrize("kind", ["bash_20250124", "text_editor_20250728", "computer_20250124"])
async def test_a_tool_whose_schema_only_anthropic_knows_is_refused_by_name(dialect, server, kind):
    tools = [TOOL, {"type": kind, "name": "own"}]
    answer = await dialect.post(server, ask(tools=tools), status=400)
    assert answer["error"]["message"].startswith(f"tools.1.type: '{kind}'")
    await dialect.post(server, ask(tools=[{**tools[1], "input_schema": {"type": "object"}}]))
    [request] = server.backend.requests
    assert [tool.name for tool in request.chat.tools] == ["own"]


async def test_the_input_of_an_old_call_is_not_escaped_for_the_model(dialect, server):
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {"at": "有错"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "ok"}
    history = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    await dialect.post(server, {"max_tokens": 9, "messages": history})
    sent = [c for one in server.backend.requests[-1].chat.messages for c in one.tool_calls]
    assert [call.arguments for call in sent] == ['{"at": "有错"}']


async def test_thinking_is_off_unless_asked_for(dialect, server):
    await dialect.post(server, ask())
    await dialect.post(server, ask(thinking={"type": "disabled"}))
    await dialect.post(server, ask(thinking={"type": "adaptive"}))
    switches = [request.chat.enable_thinking for request in server.backend.requests]
    assert switches == [False, False, None]


async def test_an_answer_begun_by_the_client_is_continued(dialect, server):
    body = ask()
    body["messages"].append({"role": "assistant", "content": "{"})
    await dialect.post(server, body)
    assert server.backend.requests[0].chat.continue_final_message


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, m.ToolChoice.AUTO),
        ({"type": "any"}, m.ToolChoice.REQUIRED),
        ({"type": "none"}, m.ToolChoice.NONE),
        ({"type": "tool", "name": "read"}, m.ToolChoice.NAMED),
    ],
)
async def test_tool_choice_is_honoured(dialect, server, choice, expected):
    choice = {**choice, "disable_parallel_tool_use": True}
    await dialect.post(server, ask(tools=[TOOL], tool_choice=choice))
    chat = server.backend.requests[0].chat
    assert chat.tool_choice == expected
    assert chat.parallel_tool_calls is False


async def test_a_schema_for_the_answer_is_a_constraint(dialect, server):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    config = {"format": {"type": "json_schema", "schema": schema}}
    await dialect.post(server, ask(output_config=config))
    assert json.loads(server.backend.requests[0].constraint.json_schema) == schema


@pytest.mark.parametrize(
    "change",
    [
        {"messages": []},
        {"messages": [{"role": "user", "content": []}]},
        {"messages": [{"role": "user", "content": [{"type": "redacted_thinking"}]}]},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1"}]}]},
        {"max_tokens": -5},
        {"temperature": 300},
        {"tool_choice": {"type": "tool", "name": "absent"}, "tools": [TOOL]},
        {"tool_choice": {"type": "maybe"}},
        {"mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}]},
        {"system": 5},
    ],
)
async def test_what_cannot_be_done_is_a_400_in_anthropic_shape(dialect, server, change):
    answer = await dialect.post(server, {**ask(), **change}, status=400)
    assert answer["type"] == "error"
    assert answer["error"]["type"] == "invalid_request_error"
    assert not server.backend.requests


async def test_a_block_of_another_shape_is_refused_by_its_name_and_place(dialect, server):
    found = {"type": "search_result", "source": "https://x", "title": "t", "content": []}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [found]}
    turn = {"role": "user", "content": [result]}
    answer = await dialect.post(server, {**ask(), "messages": [turn]}, status=400)
    message = answer["error"]["message"]
    assert message.startswith("messages.0.content.0.content.0: 'search_result' blocks")


async def test_too_long_says_the_words_that_agents_look_for(dialect, server):
    fault = m.Fault(kind=m.FaultKind.CONTEXT_TOO_LONG, message="5000 tokens of at most 4096")
    server.backend.default = Script(fault=fault)
    answer = await dialect.post(server, ask(), status=400)
    assert answer["error"]["message"].startswith("prompt is too long")
    assert "5000" in answer["error"]["message"]


async def test_tokens_are_counted_with_tools_and_without_generating(http, server):
    async with http.post(
        server.url + "/v1/messages/count_tokens?beta=true", json=ask(tools=[TOOL], system="s")
    ) as reply:
        assert await reply.json() == {"input_tokens": len(b"<system>s<user>hi")}
    assert [t.name for t in server.backend.tokenized[0].chat.tools] == ["read"]
    assert not server.backend.requests
