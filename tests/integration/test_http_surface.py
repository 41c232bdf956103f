"""Routes that are not a dialect, and the rules that hold for every route."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import struct
import threading
from dataclasses import replace

import pytest
from scripted_backend import (
    EMBEDDER,
    EMBEDDING_WIDTH,
    MODEL,
    ScriptedBackend,
    prompt_text,
    serve,
)

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.http import schema

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
KEY = "sk-local-1"
KEYED = HttpOptions(port=0, api_key_hashes=(hashlib.sha256(KEY.encode()).hexdigest(), "0" * 64))


async def raw_request(url: str, *lines: str, body: bytes = b"") -> tuple[int, bytes]:
    """Exactly these bytes; for what a proper client would never send."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    async with asyncio.timeout(5):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        rest = await reader.read(65536)
    writer.close()
    return int(head.split()[1]), rest


async def test_health_says_who_answers_and_what_runs(http, server):
    async with http.get(server.url + "/health") as reply:
        body = await reply.json()
    assert reply.status == 200
    assert body["status"] == "ok"
    assert body["pid"] == 4242
    assert body["instance_id"] == "test"
    assert body["models"][0]["model"] == MODEL


async def test_health_carries_the_plan_and_says_why_it_is_degraded(http):
    backend = ScriptedBackend()
    model = backend.models[0]
    model.plan = json.dumps({
        "strategy": "resident", "context": 4096, "kv": "fp16", "parallel": 4, "gpu_layers": None,
        "needed_bytes": 3, "available_bytes": 4, "speed": {"decode_tokens_s": [5.0, 9.0]},
    })  # fmt: skip
    model.tools, model.load_fraction = True, 0.0
    failed = m.ModelStatus(model="broken", state=m.ModelStatusState.FAILED, error="no weights")
    backend.models.append(failed)
    async with serve(backend) as server, http.get(server.url + "/health") as reply:
        body = await reply.json()
    row = body["models"][0]
    assert row["load_fraction"] == 1
    assert row["capabilities"]["tools"]
    plan = row["plan"]
    assert (plan["strategy"], plan["kv"], plan["parallel"]) == ("resident", "fp16", 4)
    assert (plan["overcommit"], plan["predicted_tokens_per_s"]) == (0.75, [5.0, 9.0])
    assert body["status"] == "degraded"
    assert any("broken failed: no weights" in warning for warning in body["warnings"])
    assert body["models"][1]["plan"] is None


async def test_health_is_red_when_steps_have_stopped(http):
    backend = ScriptedBackend()
    backend.models[0].unhealthy = True  # as residency says, by the limit of now
    async with serve(backend) as server, http.get(server.url + "/health") as reply:
        assert reply.status == 503
        assert (await reply.json())["status"] == "wedged"


async def test_ready_turns_with_the_state_of_the_daemon(http):
    backend = ScriptedBackend()
    async with serve(backend) as server:
        async with http.get(server.url + "/ready") as reply:
            assert reply.status == 200
        backend.state = "draining"
        async with http.get(server.url + "/ready") as reply:
            assert reply.status == 503
        async with http.get(server.url + "/health") as reply:
            assert reply.status == 200, "a draining daemon is alive"


async def test_models_show_context_state_and_size(http, server):
    async with http.get(server.url + "/v1/models") as reply:
        body = await reply.json()
    assert [entry["id"] for entry in body["data"]] == [MODEL, EMBEDDER]
    assert "models" not in body
    entry = body["data"][0]
    assert entry["context_length"] == 4096
    assert entry["state"] == "ready"
    assert entry["size_bytes"] == 1000
    assert entry["input_modalities"] == ["text"]
    async with http.get(server.url + "/v1/models?client_version=0.171") as reply:
        assert (await reply.json())["models"] == []


async def test_one_model_is_found_by_name_or_alias_even_with_slashes(http):
    backend = ScriptedBackend(aliases={"org/name": MODEL})
    async with serve(backend) as server:
        for name in (MODEL, "org/name", "org%2Fname"):
            async with http.get(f"{server.url}/v1/models/{name}") as reply:
                assert (await reply.json())["id"] == MODEL
        async with http.get(server.url + "/v1/models/absent") as reply:
            assert reply.status == 404
            assert (await reply.json())["error"]["code"] == "model_not_found"


async def test_no_models_is_an_empty_list(http):
    backend = ScriptedBackend(models=[])
    async with serve(backend) as server, http.get(server.url + "/v1/models") as reply:
        assert (await reply.json())["data"] == []


async def test_metrics_count_requests_tokens_and_engines(http, server):
    async with http.post(server.url + "/v1/chat/completions", json=CHAT) as reply:
        assert reply.status == 200
    async with http.get(server.url + "/metrics") as reply:
        text = await reply.text()
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    for line in (
        'swiftlm_requests_total{route="chat",status="200"} 1.0',
        f'swiftlm_tokens_generated_total{{model="{MODEL}"}} 4.0',
        f'swiftlm_cached_tokens_total{{model="{MODEL}"}} 4.0',
        f'swiftlm_requests_running{{model="{MODEL}"}} 1.0',
        f'swiftlm_time_to_first_token_seconds_count{{model="{MODEL}"}} 1.0',
        "swiftlm_uptime_seconds 5.0",
    ):
        assert line in text.splitlines(), line


async def test_two_apps_do_not_share_their_metrics(http):
    async with serve() as one, serve() as other:
        async with http.post(one.url + "/v1/chat/completions", json=CHAT):
            pass
        async with http.get(other.url + "/metrics") as reply:
            assert 'route="chat"' not in await reply.text()


async def test_head_of_the_root_is_a_200(http, server):
    async with http.head(server.url + "/") as reply:
        assert reply.status == 200


async def test_query_strings_are_ignored(http, server):
    async with http.post(server.url + "/v1/chat/completions?beta=true&x=1", json=CHAT) as reply:
        assert reply.status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nope", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/v1/nope", 404)],
)
async def test_a_path_that_is_not_there_is_an_error_object(http, server, method, path, status):
    async with http.request(method, server.url + path) as reply:
        assert reply.status == status
        error = (await reply.json())["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert path in error["message"]


async def test_anthropic_paths_fail_in_anthropic_shape(http, server):
    async with http.post(server.url + "/v1/messages", json={"messages": 5}) as reply:
        body = await reply.json()
    assert reply.status == 400
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert "messages" in body["error"]["message"]
    assert body["request_id"] == reply.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/embeddings"])
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"{}", b"[" * 100_000]
)
async def test_a_body_that_is_no_request_is_a_400(http, server, path, body):
    async with http.post(server.url + path, data=body) as reply:
        assert reply.status == 400
        assert (await reply.json())["error"]["message"]


@pytest.mark.parametrize(
    ("sent", "understood"),
    [
        # What JavaScript makes of an emoji that an agent's tool cut in half.
        (rb"cut \ud83d", "cut \ufffd"),
        (rb"\ude00 cut", "\ufffd cut"),
        (rb"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (rb"\\ud83d is text, \"\ud83d\"", '\\ud83d is text, "\ufffd"'),
    ],
)
async def test_half_a_character_is_a_replacement_and_never_the_end_of_a_session(
    http, server, sent, understood
):
    body = b'{"messages": [{"role": "user", "content": "' + sent + b'"}]}'
    async with http.post(server.url + "/v1/chat/completions", data=body) as reply:
        assert reply.status == 200, await reply.text()
    assert prompt_text(server.backend.requests[-1]) == understood


async def test_a_byte_order_mark_before_the_json_is_passed_over(http, server):
    body = b"\xef\xbb\xbf" + json.dumps(CHAT).encode()
    async with http.post(server.url + "/v1/chat/completions", data=body) as reply:
        assert reply.status == 200


async def test_a_compressed_body_that_is_none_is_a_400(http, server):
    headers = {"Content-Encoding": "gzip"}
    async with http.post(
        server.url + "/v1/chat/completions", data=b"no gzip", headers=headers
    ) as reply:
        assert reply.status == 400
        assert (await reply.json())["error"]["code"] == "invalid_encoding"


async def test_a_compressed_body_is_read_and_a_bomb_is_a_413(http):
    options = HttpOptions(port=0, max_body_bytes=100_000)
    packed = gzip.compress(json.dumps(CHAT).encode())
    bomb = gzip.compress(bytes(8 << 20))
    async with serve(ScriptedBackend(), options) as server:
        for encoding, data, status in (
            ("gzip", packed, 200),
            ("gzip", bomb, 413),
            ("zstd", packed, 415),
        ):
            headers = {"Content-Encoding": encoding}
            url = server.url + "/v1/chat/completions"
            async with http.post(url, data=data, headers=headers) as reply:
                assert reply.status == status


async def test_a_large_body_is_parsed_beside_the_event_loop(http, server, monkeypatch):
    threads = []

    real = schema.parse

    def parse(*arguments):
        threads.append(threading.current_thread())
        return real(*arguments)

    monkeypatch.setattr(schema, "parse", parse)
    for text in ("hi", "hi " * 500_000):
        body = {"messages": [{"role": "user", "content": text}]}
        async with http.post(server.url + "/v1/chat/completions", json=body) as reply:
            assert reply.status == 200
    small, large = threads
    assert small is threading.main_thread() is not large


async def test_bytes_that_are_no_request_stay_out_of_the_log(server, caplog):
    chunked = ("POST /v1/chat/completions HTTP/1.1", "Host: 127.0.0.1")
    status, _ = await raw_request(
        server.url, *chunked, "Transfer-Encoding: chunked", body=b"my secret wish"
    )
    assert status == 400
    assert "secret" not in caplog.text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_chunked_request_bodies_are_accepted(server):
    body = json.dumps(CHAT).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (body[:7], body[7:])) + b"0\r\n\r\n"
    status, rest = await raw_request(
        server.url,
        "POST /v1/chat/completions HTTP/1.1",
        "Host: 127.0.0.1",
        "Transfer-Encoding: chunked",
        "Connection: close",
        body=chunks,
    )
    assert status == 200
    assert b"Hello, world!" in rest


@pytest.mark.parametrize("coding", ["gzip, chunked", "x,chunked", "chunked, chunked"])
async def test_a_transfer_coding_besides_chunked_is_refused(server, coding):
    body = json.dumps(CHAT).encode()
    status, rest = await raw_request(
        server.url,
        "POST /v1/chat/completions HTTP/1.1",
        "Host: 127.0.0.1",
        f"Transfer-Encoding: {coding}",
        "Connection: close",
        body=b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body),
    )
    assert status == 400, rest


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://evil.example/health", 403),
        ("http://evil.example:80/health", 403),
        ("http://127.0.0.1@evil.example/health", 403),
        ("https://evil.example?x=/health", 403),
        ("http://localhost/health", 200),
        ("http://127.0.0.1:5413/health?x=http://evil.example/", 200),
        ("/health?x=http://evil.example/", 200),
    ],
)
@pytest.mark.parametrize("host", ["Host: 127.0.0.1", "X-None: 1"])
async def test_a_target_that_names_a_host_is_judged_by_it(server, target, status, host):
    version = "1.1" if host.startswith("Host") else "1.0"
    answer = await raw_request(server.url, f"GET {target} HTTP/{version}", host)
    assert answer[0] == status


async def test_a_body_over_the_limit_is_a_413_declared_or_not(http):
    async with serve(options=HttpOptions(port=0, max_body_bytes=1000)) as server:
        url = server.url + "/v1/chat/completions"
        async with http.post(url, data=b" " * 2000) as reply:
            assert reply.status == 413
            assert (await reply.json())["error"]["code"] == "body_too_large"

        async def undeclared():
            for _ in range(20):
                yield b" " * 100

        async with http.post(url, data=undeclared()) as reply:
            assert reply.status == 413


async def test_a_body_that_dribbles_is_given_up(server):
    async with serve(options=HttpOptions(port=0, body_timeout_s=0.05)) as server:
        status, _ = await raw_request(
            server.url,
            "POST /v1/chat/completions HTTP/1.1",
            "Host: 127.0.0.1",
            "Content-Length: 100",
            "Connection: close",
            body=b"{",
        )
    assert status == 408


async def test_a_head_that_dribbles_is_closed():
    async with serve(options=HttpOptions(port=0, keepalive_timeout_s=0.05)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()


async def test_a_head_over_the_limit_is_refused(server):
    status, _ = await raw_request(
        server.url, "GET /health HTTP/1.1", "Host: 127.0.0.1", f"X: {'a' * 50_000}"
    )
    assert status == 400


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("192.168.1.7", 403),
        ("localhost:5413", 200),
        ("127.0.0.1", 200),
        ("[::1]:5413", 200),
        ("mac.local", 200),
    ],
)
async def test_only_loopback_and_configured_hosts_are_served(http, host, status):
    options, headers = HttpOptions(port=0, allowed_hosts=("mac.local",)), {"Host": host}
    async with serve(options=options) as server:
        reply = await http.get(server.url + "/v1/models", headers=headers)
        assert reply.status == status


async def test_a_foreign_origin_is_refused_and_gets_no_cors_headers(http, server):
    url, headers = server.url + "/v1/chat/completions", {"Origin": "https://evil.example"}
    for method in ("POST", "OPTIONS"):
        async with http.request(method, url, json=CHAT, headers=headers) as reply:
            assert reply.status == 403
            assert "Access-Control-Allow-Origin" not in reply.headers
    assert not server.backend.requests


async def test_the_null_origin_is_foreign_and_our_own_is_not(http, server):
    async with http.get(server.url + "/v1/models", headers={"Origin": "null"}) as reply:
        assert reply.status == 403
    async with http.get(server.url + "/v1/models", headers={"Origin": server.url}) as reply:
        assert reply.status == 200


async def test_a_configured_origin_may_ask_and_read(http):
    origin = "http://localhost:3000"
    async with serve(options=HttpOptions(port=0, cors_origins=(origin,))) as server:
        url, headers = server.url + "/v1/chat/completions", {"Origin": origin}
        async with http.options(url, headers=headers) as reply:
            assert reply.status == 204
            assert "POST" in reply.headers["Access-Control-Allow-Methods"]
        for stream in (False, True):
            async with http.post(url, json={**CHAT, "stream": stream}, headers=headers) as reply:
                assert reply.headers["Access-Control-Allow-Origin"] == origin
                assert reply.headers["Vary"] == "Origin"
        page = {"Origin": origin, "Accept": "text/html"}
        async with http.get(server.url + "/", headers=page) as reply:  # what it varies by stays
            assert reply.headers["Vary"] == "Accept, Accept-Encoding, Origin"


async def test_keys_are_taken_from_both_headers_and_wrong_ones_are_refused(http):
    async with serve(options=KEYED) as server:
        url = server.url + "/v1/models"
        good = [{"Authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}]
        for headers in good:
            async with http.get(url, headers=headers) as reply:
                assert reply.status == 200
        bad = [
            {},
            {"Authorization": "Bearer nope"},
            {"x-api-key": "\u00e9"},
            {"Authorization": KEY},
        ]
        for headers in bad:
            async with http.get(url, headers=headers) as reply:
                assert reply.status == 401
                assert (await reply.json())["error"]["code"] == "invalid_api_key"
        async with http.get(server.url + "/metrics") as reply:
            assert reply.status == 401


async def test_health_needs_no_key_and_then_tells_nothing_about_models(http):
    async with serve(options=KEYED) as server:
        async with http.get(server.url + "/health") as reply:
            body = await reply.json()
            assert reply.status == 200
            assert "models" not in body
        async with http.get(server.url + "/health", headers={"x-api-key": KEY}) as reply:
            assert "models" in await reply.json()


async def test_a_public_address_without_a_key_is_not_served():
    with pytest.raises(ValueError, match="API key"):
        async with serve(options=HttpOptions(host="0.0.0.0", port=0)):
            pass


async def test_the_access_log_has_tokens_and_no_text(http, server, caplog):
    caplog.set_level("INFO", "swiftlmd.access")
    secret = {"messages": [{"role": "user", "content": "my secret"}], "model": MODEL}
    headers = {"x-api-key": "sk-very-secret"}
    async with http.post(
        server.url + "/v1/chat/completions?token=q", json=secret, headers=headers
    ) as reply:
        await reply.read()
    [line] = [r.getMessage() for r in caplog.records if r.name == "swiftlmd.access"]
    assert "completion=4" in line
    assert reply.headers["x-request-id"] in line
    for word in ("secret", "Hello", "token=q"):
        assert word not in line


@pytest.mark.parametrize("given", ["one", ["one", "two"], [1, 2, 3], [[1], [2, 3], [4]]])
async def test_embeddings_come_for_every_shape_of_input(http, server, given):
    body = {"model": EMBEDDER, "input": given}
    async with http.post(server.url + "/v1/embeddings", json=body) as reply:
        answer = await reply.json()
    expected = len(given) if isinstance(given[0], list) or given == ["one", "two"] else 1
    assert [entry["index"] for entry in answer["data"]] == list(range(expected))
    assert len(answer["data"][0]["embedding"]) == EMBEDDING_WIDTH
    assert answer["usage"]["prompt_tokens"] == 3 * expected


async def test_base64_embeddings_are_the_floats_in_little_endian(http, server):
    vectors = {}
    for encoding in ("float", "base64"):
        body = {"model": EMBEDDER, "input": ["a", "b"], "encoding_format": encoding}
        async with http.post(server.url + "/v1/embeddings", json=body) as reply:
            vectors[encoding] = [e["embedding"] for e in (await reply.json())["data"]]
    decoded = [
        list(struct.unpack(f"<{EMBEDDING_WIDTH}f", base64.b64decode(vector)))
        for vector in vectors["base64"]
    ]
    assert decoded == vectors["float"]


@pytest.mark.parametrize("given", ["", [], [""], [[]], [[-1]], 5, None, ["a"] * 3000])
async def test_an_input_that_cannot_be_embedded_is_a_400(http, server, given):
    async with http.post(server.url + "/v1/embeddings", json={"input": given}) as reply:
        assert reply.status == 400
        assert (await reply.json())["error"]["param"].startswith("input")


async def test_text_goes_to_tokens_and_back(http, server):
    async with http.post(server.url + "/tokenize", json={"content": "h\u00e9"}) as reply:
        tokens = (await reply.json())["tokens"]
    assert tokens == list("h\u00e9".encode())
    async with http.post(server.url + "/detokenize", json={"tokens": tokens}) as reply:
        assert (await reply.json())["content"] == "h\u00e9"
    async with http.post(server.url + "/detokenize", json={"tokens": [70_000]}) as reply:
        assert reply.status == 400


async def test_the_template_of_a_chat_can_be_seen(http, server):
    async with http.post(server.url + "/apply-template", json=CHAT) as reply:
        body = await reply.json()
    assert body["prompt"] == "<user>hi"
    assert body["count"] == len(b"<user>hi")


async def test_aliases_are_listed_beside_the_models_they_stand_for(http):
    backend = ScriptedBackend(aliases={"gpt-4o": MODEL, "claude-*": MODEL, "lost": "absent"})
    async with serve(backend) as server:
        async with http.get(server.url + "/v1/models") as reply:
            listed = {entry["id"]: entry for entry in (await reply.json())["data"]}
        async with http.get(server.url + "/api/tags") as reply:
            tags = [entry["name"] for entry in (await reply.json())["models"]]
    assert list(listed) == tags == [MODEL, EMBEDDER, "gpt-4o"]
    assert listed["gpt-4o"]["context_length"] == listed[MODEL]["context_length"]


async def test_a_harness_learns_of_the_tokenizer(http, tmp_path):
    settings = {"eos_token": {"content": "</s>"}, "bos_token": "<s>", "model_max_length": 4096}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    backend = ScriptedBackend()
    backend.models = [replace(backend.models[0], path=str(tmp_path))]
    async with serve(backend) as server:
        async with http.get(server.url + "/tokenizer_info") as reply:
            found = await reply.json()
        async with http.post(server.url + "/detokenize", json={"tokens": [104, 105]}) as reply:
            assert (await reply.json())["prompt"] == "hi"
    assert (found["eos_token"], found["bos_token"], found["pad_token"]) == ("</s>", "<s>", None)
    assert found["chat_template"] == "{{ messages }}"
