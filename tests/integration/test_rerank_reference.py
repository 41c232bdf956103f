"""The order of `/v1/rerank` is that of transformers, on 200 pairs and a model of Qwen3's kind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_harness import EngineHarness
from reranked_pairs import NO, YES, make_reranker, queries, recorded_scores

from swiftlm_engine.server import wire
from swiftlm_proto import messages as m
from swiftlmd.http.collect import Choice
from swiftlmd.http.rerank import RerankRequest, question, score

pytestmark = pytest.mark.usefixtures("on_the_cpu")


def reranked(engine: EngineHarness, query: str, documents: list[str]) -> list[float]:
    body = RerankRequest(query=query, documents=documents)
    jobs = [
        replace(wire.job(question(body, text)), request_id=f"{query} {number}")
        for number, text in enumerate(documents)
    ]
    return [score(as_choice(answer), YES, NO) for answer in engine.run(*jobs)]


def as_choice(answer) -> Choice:
    [first] = [one for delta in answer.deltas for one in delta.logprobs]
    top = [m.TokenLogprob(token_id=one.token_id, logprob=one.logprob) for one in first.top]
    row = m.TokenLogprob(token_id=first.token_id, logprob=first.logprob, top=top)
    return Choice(logprobs=[row])


@pytest.mark.parametrize("num_queries", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_order_and_scores_are_those_of_transformers(tmp_path, num_queries: int):
    """20 documents for each query."""
    expected = recorded_scores()[:num_queries]
    with EngineHarness(make_reranker(tmp_path), prefix_cache_bytes=1 << 24) as engine:
        found = [reranked(engine, *asked) for asked in queries()[:num_queries]]
    assert sum(map(len, found)) == 20 * num_queries
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
        for a, x in zip(ours, theirs, strict=True):
            for b, y in zip(ours, theirs, strict=True):
                assert (a > b) == (x > y) or abs(x - y) < 1e-5
