"""`/v1/rerank`, in the shape of Cohere and Jina."""

from __future__ import annotations

import math

import pytest
from scripted_backend import MODEL, Script, ScriptedBackend, parts_text, serve

from swiftlm_proto import messages as m

YES, NO = 1, 2


class Judge(ScriptedBackend):
    """Says yes the more often a document has the query's word."""

    async def tokenize(self, model, request):
        return m.TokenizeReply(ids=[{"yes": YES, "no": NO}[request.text]])

    def script_of(self, request):
        text = parts_text(request.chat.messages[-1])
        yes = -1.0 / (1 + text.count("cat"))
        top = [
            m.TokenLogprob(token_id=YES, token=b"yes", logprob=yes),
            m.TokenLogprob(token_id=NO, token=b"no", logprob=-0.75),
        ]
        first = m.TokenLogprob(token_id=YES, token=b"yes", logprob=yes, top=top)
        return Script((m.Delta(content="yes", logprobs=[first]),), prompt_tokens=7)


async def ask(http, body, status=200):
    async with serve(Judge()) as server, http.post(server.url + "/v1/rerank", json=body) as reply:
        answer = await reply.json()
        assert reply.status == status, answer
        return answer, server.backend.requests


async def test_documents_are_sorted_by_how_well_they_answer(http):
    documents = ["a dog", {"text": "a cat and a cat"}, "a cat"]
    body = {"model": MODEL, "query": "what purrs?", "documents": documents}
    more = {"return_documents": True, "instruction": "Find the animal."}
    answer, requests = await ask(http, {**body, **more})
    assert [one["index"] for one in answer["results"]] == [1, 2, 0]
    assert answer["results"][0]["document"] == {"text": "a cat and a cat"}
    score = answer["results"][2]["relevance_score"]
    assert score == pytest.approx(math.exp(-1) / (math.exp(-1) + math.exp(-0.75)), rel=1e-5)
    assert answer["usage"]["total_tokens"] == 21
    for request in requests:
        assert (request.max_tokens, request.chat.enable_thinking) == (1, False)
        assert "what purrs?" in parts_text(request.chat.messages[1])
        assert "Find the animal." in parts_text(request.chat.messages[1])
    shorter, _ = await ask(http, {**body, "top_n": 1})
    assert shorter["results"] == [{"index": 1, "relevance_score": pytest.approx(0.6, abs=0.1)}]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"query": ""}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": ["x"] * 5000}, "documents"),
        ({"documents": [5]}, "documents.0"),
        ({"top_n": 0}, "top_n"),
        ({"max_tokens_per_doc": 100}, "max_tokens_per_doc"),
    ],
)
async def test_what_cannot_be_done_is_a_400_that_names_the_field(http, changes, param):
    body = {"model": MODEL, "query": "q", "documents": ["d"], **changes}
    answer, requests = await ask(http, body, status=400)
    assert answer["error"]["param"].startswith(param)
    assert not requests


async def test_a_model_without_the_two_words_is_refused(http):
    async with serve() as server:
        body = {"model": MODEL, "query": "q", "documents": ["d"]}
        async with http.post(server.url + "/v1/rerank", json=body) as reply:
            assert reply.status == 400
            assert (await reply.json())["error"]["param"] == "model"
