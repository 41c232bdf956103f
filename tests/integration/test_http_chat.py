"""`/v1/chat/completions` and `/v1/completions` over a real socket, against a scripted backend."""

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
    serve,
    text,
    tool_call,
)

from swiftlm_proto import messages as m

CHAT = "/v1/chat/completions"
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


def ask(content: str = "hi", **more: object) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **more}


async def post(http, server, path, body):
    async with http.post(server.url + path, json=body) as reply:
        return reply.status, await reply.json()


async def stream(http, server, path, body) -> list[dict]:
    """The chunks of a stream that ended well."""
    async with http.post(server.url + path, json={**body, "stream": True}) as reply:
        assert reply.status == 200
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        raw = (await reply.read()).decode()
    events = [block for block in raw.split("\n\n") if block]
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


def joined(chunks: list[dict], field: str) -> str:
    return "".join(
        choice["delta"].get(field) or "" for chunk in chunks for choice in chunk["choices"]
    )


async def test_a_chat_answers_with_text_usage_and_finish_reason(http, server):
    status, body = await post(http, server, CHAT, ask())
    assert status == 200
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello, world!", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert body["usage"]["total_tokens"] == 16
    assert body["object"] == "chat.completion"


async def test_streamed_chunks_share_one_id_and_name_the_role_once(http, server):
    chunks = await stream(http, server, CHAT, ask())
    assert len({chunk["id"] for chunk in chunks}) == 1
    roles = [c for chunk in chunks for c in chunk["choices"] if "role" in c["delta"]]
    assert len(roles) == 1
    assert joined(chunks, "content") == "Hello, world!"
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "stop"


async def test_usage_comes_in_a_trailer_and_only_when_asked_for(http, server):
    plain = await stream(http, server, CHAT, ask(stream_options={}))
    assert not any("usage" in chunk for chunk in plain)
    counted = await stream(http, server, CHAT, ask(stream_options={"include_usage": True}))
    assert counted[-1]["choices"] == []
    assert counted[-1]["usage"]["completion_tokens"] == 4
    assert all(chunk["usage"] is None for chunk in counted[:-1])


async def test_a_rich_answer_is_the_same_streamed_and_whole(http, server):
    server.backend.default = calls(
        m.Delta(reasoning="I should"),
        m.Delta(reasoning=" look."),
        m.Delta(content="Looking \u2603\U0001f600\u2028"),
        *tool_call("weather", '{"city"', ': "Oslo"}'),
        *tool_call("weather", '{"city": "Rome"}', index=1, call_id="call_2"),
    )
    _, whole = await post(http, server, CHAT, ask(tools=[TOOL]))
    chunks = await stream(http, server, CHAT, ask(tools=[TOOL]))
    message = whole["choices"][0]["message"]
    assert joined(chunks, "content") == message["content"] == "Looking \u2603\U0001f600\u2028"
    for field in ("reasoning", "reasoning_content"):
        assert joined(chunks, field) == message[field] == "I should look."
    assert assemble_calls(chunks) == message["tool_calls"]
    assert message["tool_calls"][0]["function"] == {
        "name": "weather",
        "arguments": '{"city": "Oslo"}',
    }
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def assemble_calls(chunks: list[dict]) -> list[dict]:
    """As OpenAI's clients do: the first delta of an index has the name, the rest add to it."""
    built: dict[int, dict] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            for delta in choice["delta"].get("tool_calls", []):
                if "id" in delta:
                    built[delta["index"]] = {
                        "id": delta["id"],
                        "type": delta["type"],
                        "function": dict(delta["function"]),
                    }
                else:
                    call = built[delta["index"]]["function"]
                    call["arguments"] += delta["function"]["arguments"]
    return [built[index] for index in sorted(built)]


async def test_a_call_without_text_has_null_content(http, server):
    server.backend.default = calls(*tool_call("weather", "{}"))
    _, body = await post(http, server, CHAT, ask(tools=[TOOL]))
    assert body["choices"][0]["message"]["content"] is None


async def test_every_choice_of_n_gets_its_own_index(http, server):
    _, body = await post(http, server, CHAT, ask(n=3))
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["prompt_tokens"] == 12, "the prompt counts once"
    assert body["usage"]["completion_tokens"] == 12
    chunks = await stream(http, server, CHAT, ask(n=3))
    finished = [
        choice["index"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["finish_reason"]
    ]
    assert sorted(finished) == [0, 1, 2]


async def test_logprobs_come_in_openai_shape_streamed_and_whole(http, server):
    server.backend.default = Script(
        (
            m.Delta(content="a", logprobs=[logprob("a")]),
            m.Delta(content="b", logprobs=[logprob("b", float("-inf"))]),
        )
    )
    _, body = await post(http, server, CHAT, ask(logprobs=True, top_logprobs=2))
    tokens = body["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in tokens] == ["a", "b"]
    assert tokens[0]["bytes"] == [97]
    assert len(tokens[0]["top_logprobs"]) == 2
    assert tokens[1]["logprob"] == -9999.0
    chunks = await stream(http, server, CHAT, ask(logprobs=True, top_logprobs=2))
    streamed = [
        token
        for chunk in chunks
        for choice in chunk["choices"]
        for token in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == tokens
    assert server.backend.requests[-1].top_logprobs == 2


async def test_null_means_the_default_for_every_optional_field(http, server):
    fields = (
        "temperature top_p top_k min_p max_tokens max_completion_tokens n seed stop stream "
        "stream_options logit_bias tools tool_choice response_format logprobs top_logprobs user "
        "presence_penalty frequency_penalty xtc_probability reasoning_effort reasoning keep_alive"
    )
    status, body = await post(http, server, CHAT, ask(**dict.fromkeys(fields.split())))
    assert status == 200, body
    assert server.backend.requests[-1].max_tokens is None


async def test_integers_pass_for_floats(http, server):
    body = ask(temperature=1, top_p=1, xtc_probability=0, presence_penalty=-1, max_tokens=5.0)
    status, reply = await post(http, server, CHAT, body)
    assert status == 200, reply
    asked = server.backend.requests[-1]
    assert asked.sampling.temperature == 1.0
    assert asked.max_tokens == 5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", -7),
        ("seed", 2**64),
        ("n", 0),
        ("n", 1000),
        ("temperature", -0.1),
        ("temperature", 100.1),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 1.5),
        ("top_k", -2),
        ("max_tokens", -7),
        ("max_tokens", "-1"),
        ("max_tokens", 1.5),
        ("max_completion_tokens", -7),
        ("stop", ["x"] * 65),
        ("stop", 5),
        ("stop", "x" * 5000),
        ("logit_bias", {"abc": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"5": 10_001}),
        ("logit_bias", {"99999999999": 1}),
        ("top_logprobs", 1001),
        ("prompt_logprobs", 0),
        ("prompt_logprobs", 5),
        ("typical_p", 0.9),
        ("dry_multiplier", 0.8),
        ("mirostat", 2),
        ("length_penalty", 1.5),
        ("allowed_token_ids", [1]),
        ("n_probs", 5),
        ("top_logprobs", 5),
        ("tool_choice", "sometimes"),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "absent"}}),
        ("tools", [{"type": "retrieval"}]),
        ("tools", [{"type": "function"}]),
        ("tools", [TOOL, TOOL]),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}),
        ("reasoning_effort", "enormous"),
        ("functions", [{"name": "f"}]),
        ("audio", {"voice": "alloy"}),
        ("modalities", ["text", "audio"]),
        ("keep_alive", "soon"),
        ("messages", []),
        ("messages", [{"role": "wizard", "content": "x"}]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": [{"type": "input_audio"}]}]),
        ("messages", [{"role": "assistant", "tool_calls": [{"id": "1"}]}]),
        ("messages", "hello"),
    ],
)
async def test_a_bad_value_is_a_400_that_names_the_field(http, server, field, value):
    status, body = await post(http, server, CHAT, {**ask(), field: value})
    assert status == 400, body
    error = body["error"]
    assert error["param"].split(".")[0] == field
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert not server.backend.requests


async def test_an_unknown_model_is_a_404_that_names_the_known_ones(http, server):
    status, body = await post(http, server, CHAT, {**ask(), "model": "gpt-9"})
    assert status == 404
    assert body["error"]["code"] == "model_not_found"
    assert MODEL in body["error"]["message"]


async def test_an_absent_model_means_the_default(http, server):
    status, body = await post(http, server, CHAT, {"messages": [{"role": "user", "content": "hi"}]})
    assert status == 200
    assert body["model"] == MODEL


async def test_unknown_fields_are_tolerated_and_named_once_in_the_log(http, server, caplog):
    caplog.set_level("INFO", "swiftlmd.http.schema")
    for _ in range(2):
        status, _ = await post(http, server, CHAT, ask(frobnicate=1))
        assert status == 200
    named = [r for r in caplog.records if "frobnicate" in r.getMessage()]
    assert len(named) == 1


async def test_the_request_list_names_a_client_by_its_user_agents_first_word(http, server):
    headers = {"User-Agent": "opencode/1.18 (linux)"}
    async with http.post(server.url + CHAT, json=ask(), headers=headers) as reply:
        assert reply.status == 200
    assert server.backend.routes[-1] == ("chat", "opencode/1.18")


async def test_a_list_of_prompts_gives_one_choice_for_each(http, server):
    server.backend.scripts = {"a": text("A"), "b": text("B1", "B2"), "c": text("C")}
    body = {"prompt": ["a", "b", "c"], "n": 2}
    _, whole = await post(http, server, "/v1/completions", body)
    assert [c["text"] for c in whole["choices"]] == ["A", "A", "B1B2", "B1B2", "C", "C"]
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2, 3, 4, 5]
    assert whole["usage"]["prompt_tokens"] == 36
    chunks = await stream(http, server, "/v1/completions", body)
    texts = [""] * 6
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["A", "A", "B1B2", "B1B2", "C", "C"]


@pytest.mark.parametrize("prompt", ["", "text", [1, 2, 3], [[1, 2], [3]], ["one", "two"]])
async def test_every_shape_of_prompt_is_answered(http, server, prompt):
    status, body = await post(http, server, "/v1/completions", {"prompt": prompt})
    assert status == 200, body
    assert all(request.raw_text for request in server.backend.requests)


@pytest.mark.parametrize("prompt", [[], [[]], [-1], [2**40], [1, "a"], None, {}, 5])
async def test_a_prompt_that_cannot_be_is_a_400(http, server, prompt):
    status, body = await post(http, server, "/v1/completions", {"prompt": prompt})
    assert status == 400
    assert body["error"]["param"].startswith("prompt")


async def test_echo_and_suffix_are_for_the_engine(http, server):
    await post(http, server, "/v1/completions", {"prompt": "a", "echo": True})
    assert server.backend.requests[-1].echo
    await post(http, server, "/v1/completions", {"prompt": "def f(", "suffix": "return 1"})
    assert server.backend.requests[-1].infill == m.Infill(prefix="def f(", suffix="return 1")


async def test_completion_logprobs_are_four_columns(http, server):
    server.backend.default = Script(
        (
            m.Delta(content="ab", logprobs=[logprob("ab")]),
            m.Delta(content="c", logprobs=[logprob("c")]),
        ),
        reason=Reason.LENGTH,
    )
    _, body = await post(http, server, "/v1/completions", {"prompt": "x", "logprobs": 2})
    columns = body["choices"][0]["logprobs"]
    assert columns["tokens"] == ["ab", "c"]
    assert columns["text_offset"] == [0, 2]
    assert columns["top_logprobs"][0] == {"t0": -0.25, "t1": -1.25}
    assert body["choices"][0]["finish_reason"] == "length"
    chunks = await stream(http, server, "/v1/completions", {"prompt": "x", "logprobs": 2})
    offsets = [
        offset
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["logprobs"]
        for offset in choice["logprobs"]["text_offset"]
    ]
    assert offsets == [0, 2]


async def test_the_offset_of_a_token_counts_characters_and_not_bytes(http, server):
    pieces = [bytes([b]) for b in "\u00e9\U0001f600x\u00e9".encode()]
    rows = [m.TokenLogprob(token_id=1, token=piece, logprob=-0.25) for piece in pieces]
    deltas = (
        m.Delta(content="\u00e9", logprobs=rows[:2]),
        m.Delta(content="x", logprobs=rows[2:5]),
    )
    server.backend.default = Script((*deltas, m.Delta(logprobs=rows[5:])), reason=Reason.LENGTH)
    _, body = await post(http, server, "/v1/completions", {"prompt": "x", "logprobs": 0})
    offsets = [0, 0, 1, 1, 1, 1, 2, 3, 3]
    assert body["choices"][0]["logprobs"]["text_offset"] == offsets
    chunks = await stream(http, server, "/v1/completions", {"prompt": "x", "logprobs": 0})
    columns = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
    assert [at for one in columns for at in one["text_offset"]] == offsets


async def test_an_echoed_prompt_has_log_probabilities_but_for_its_first_token(http, server):
    first = m.TokenLogprob(token_id=7, token=b"a", logprob=float("nan"))
    rows = m.Delta(content="ab", logprobs=[first, logprob("b")])
    server.backend.default = Script((rows, m.Delta(logprobs=[logprob("c")])), reason=Reason.LENGTH)
    body = {"prompt": [7, 8], "echo": True, "logprobs": 2, "max_tokens": 1}
    _, reply = await post(http, server, "/v1/completions", body)
    columns = reply["choices"][0]["logprobs"]
    assert columns["tokens"] == ["a", "b", "c"]
    assert columns["token_logprobs"] == [None, -0.25, -0.25]
    assert columns["top_logprobs"][:2] == [None, {"t0": -0.25, "t1": -1.25}]
    chunks = await stream(http, server, "/v1/completions", body)
    assert chunks[0]["choices"][0]["logprobs"]["token_logprobs"] == [None, -0.25]


async def test_no_new_token_can_be_asked_for_only_with_echo(http, server):
    await post(http, server, "/v1/completions", {"prompt": "a", "echo": True, "max_tokens": 0})
    assert server.backend.requests[-1].max_tokens == 0
    status, body = await post(http, server, "/v1/completions", {"prompt": "a", "max_tokens": 0})
    assert status == 400
    assert body["error"]["param"] == "max_tokens"


async def test_a_failing_prompt_of_a_list_fails_the_request(http):
    fault = m.Fault(kind=m.FaultKind.CONTEXT_TOO_LONG, message="5000 tokens, limit 4096")
    backend = ScriptedBackend(scripts={"long": Script(fault=fault)})
    async with serve(backend) as server:
        status, body = await post(http, server, "/v1/completions", {"prompt": ["a", "long"]})
        assert status == 400
        assert body["error"]["code"] == "context_length_exceeded"
        await backend.wait_until(lambda: backend.running == 0)


async def test_what_was_asked_for_and_cannot_be_is_told_in_the_answer(http):
    class Warning_(ScriptedBackend):
        async def generate(self, *args, **more):
            async for event in super().generate(*args, **more):
                if event.started is not None:
                    event.started.warnings = ["thinking was asked for, and this model has none"]
                yield event

    user = {"role": "user", "content": "hi"}
    async with serve(Warning_()) as server:
        for path, body in (
            ("/v1/chat/completions", {"messages": [user], "n": 2}),
            ("/v1/responses", {"input": "hi"}),
            ("/v1/messages", {"messages": [user], "max_tokens": 9}),
            ("/api/chat", {"model": MODEL, "messages": [user], "stream": False}),
        ):
            async with http.post(server.url + path, json=body) as reply:
                assert len((await reply.json())["warnings"]) == 1, path
            async with http.post(server.url + path, json={**body, "stream": True}) as reply:
                raw = await reply.text()
            assert "this model has none" in raw, path
            for line in raw.splitlines():
                if line.startswith("data: {"):
                    json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_thoughts_that_are_excluded_are_not_sent(http, path):
    script = Script((m.Delta(reasoning="secret"), m.Delta(content="4")))
    user = {"role": "user", "content": "hi"}
    body = {"reasoning": {"exclude": True}, "messages": [user], "input": [user]}
    async with serve(ScriptedBackend(default=script)) as server:
        for stream in (False, True):
            sent = {**body, "stream": stream}
            async with http.post(server.url + path, json=sent) as reply:
                raw = await reply.text()
            assert "secret" not in raw
            assert '"4"' in raw


async def test_samplers_that_are_off_in_other_servers_words_are_taken(http, server):
    off = {"typical_p": 1.0, "tfs_z": 1, "dry_multiplier": 0, "dry_base": 1.75, "mirostat": 0}
    off |= {"top_n_sigma": -1, "length_penalty": 1.0, "n_probs": 0, "prompt_logprobs": None}
    off |= {"dynatemp_range": 0.0, "bad_words": [], "grammar": ""}
    status, _ = await post(http, server, CHAT, {**ask(), **off})
    assert status == 200
