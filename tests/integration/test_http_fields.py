"""Every field that a dialect knows and has no effect, or is refused: as docs/fields.md says."""

from __future__ import annotations

import pytest
from field_table import DIALECTS
from scripted_backend import EMBEDDER, MODEL, ScriptedBackend, serve

from swiftlm_proto import messages as m

USER = {"role": "user", "content": "hi"}
ASKED = {
    "chat": ("/v1/chat/completions", {"messages": [USER]}),
    "completions": ("/v1/completions", {"prompt": "hi"}),
    "responses": ("/v1/responses", {"input": "hi"}),
    "messages": ("/v1/messages", {"messages": [USER], "max_tokens": 9}),
    "embeddings": ("/v1/embeddings", {"model": EMBEDDER, "input": "hi"}),
    "rerank": ("/v1/rerank", {"query": "q", "documents": ["d"]}),
    "ollama chat": ("/api/chat", {"model": MODEL, "messages": [USER]}),
    "ollama generate": ("/api/generate", {"model": MODEL, "prompt": "hi"}),
    "ollama embed": ("/api/embed", {"model": EMBEDDER, "input": "hi"}),
    "ollama options": ("/api/chat", {"model": MODEL, "messages": [USER]}),
}


class OneToken(ScriptedBackend):
    """Every word is one token, as rerank wants of its two."""

    async def tokenize(self, model, request):
        reply = await super().tokenize(model, request)
        return m.TokenizeReply(ids=reply.ids[:1], text=reply.text)


def with_field(dialect: str, name: str, value: object) -> tuple[str, dict]:
    path, body = ASKED[dialect]
    return path, {**body, **({"options": {name: value}} if "options" in dialect else {name: value})}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_refused_fields_are_named_and_pass_when_off(http, dialect):
    kind = DIALECTS[dialect]
    async with serve(OneToken()) as server:
        for name in kind.refused:
            path, body = with_field(dialect, name, 5)
            async with http.post(server.url + path, json=body) as reply:
                assert reply.status == 400, name
                assert name in await reply.text()
            for value in (None, *kind.neutral.get(name, (0, "", [], False))):
                path, body = with_field(dialect, name, value)
                async with http.post(server.url + path, json=body) as reply:
                    assert reply.status == 200, (name, value)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_fields_without_effect_are_taken(http, dialect):
    kind = DIALECTS[dialect]
    async with serve(OneToken()) as server:
        for name in kind.ignored - kind.model_fields.keys():
            path, body = with_field(dialect, name, None)
            path, more = with_field(dialect, name, {"a": [1]})
            for sent in (body, more):
                async with http.post(server.url + path, json=sent) as reply:
                    assert reply.status == 200, (name, await reply.text())
        requests = server.backend.requests
        for request in requests:
            request.request_id = ""
        assert all(request == requests[0] for request in requests)


@pytest.mark.parametrize("dialect", ["chat", "completions", "responses"])
async def test_more_samples_than_answers_are_refused_wherever_somebody_asks_for_them(http, dialect):
    path, body = ASKED[dialect]
    async with serve(OneToken()) as server:
        async with http.post(server.url + path, json={**body, "best_of": 1}) as reply:
            assert reply.status == 200, await reply.text()
        async with http.post(server.url + path, json={**body, "best_of": 3}) as reply:
            assert reply.status == 400
            assert (await reply.json())["error"]["param"] == "best_of"


EFFECTIVE = [
    ("chat", {"cache_salt": "s"}, lambda r: r.cache_salt == "s"),
    ("chat", {"guided_grammar": "start: /a/"}, lambda r: r.constraint.lark == "start: /a/"),
    ("chat", {"guided_choice": ["a"]}, lambda r: r.constraint.choices.values == ["a"]),
    ("chat", {"min_tokens": 3}, lambda r: r.min_tokens == 3),
    ("chat", {"stop_token_ids": [3]}, lambda r: r.stop_token_ids == [3]),
    ("chat", {"xtc_probability": 0.5, "xtc_threshold": 0.2}, lambda r: r.sampling.xtc_threshold),
    ("chat", {"xtc_threshold": 0.9}, lambda r: r.sampling.xtc_threshold is None),
    ("chat", {"cache_prompt": False}, lambda r: r.no_cache),
    ("chat", {"return_token_ids": True}, lambda r: r.return_token_ids),
    ("completions", {"best_of": 2, "n": 2}, lambda r: r.n == 2),
    ("chat", {"continue_final_message": True}, lambda r: r.chat.continue_final_message),
    (
        "chat",
        {"messages": [USER, {"role": "assistant", "content": "I"}], "add_generation_prompt": False},
        lambda r: r.chat.continue_final_message,
    ),
    (
        "messages",
        {"output_format": {"type": "json_schema", "schema": {"type": "object"}}},
        lambda r: r.constraint.json_schema,
    ),
    ("chat", {"n_predict": 7}, lambda r: r.max_tokens == 7),
    ("chat", {"repeat_penalty": 1.5}, lambda r: r.sampling.repetition_penalty == 1.5),
    ("chat", {"repeat_last_n": 9}, lambda r: r.sampling.repetition_context == 9),
]


@pytest.mark.parametrize(("dialect", "fields", "holds"), EFFECTIVE)
async def test_fields_reach_the_engine(http, dialect, fields, holds):
    path, body = ASKED[dialect]
    async with serve(OneToken()) as server:
        async with http.post(server.url + path, json={**body, **fields}) as reply:
            assert reply.status == 200, await reply.text()
        assert holds(server.backend.requests[0])
