"""What `swiftlmctl cluster` prints of hosts and plans."""

from __future__ import annotations

import json
from typing import Any

import pytest

from swiftlm_proto import messages as m
from swiftlmctl.views import cluster_table

SPEED = {
    "prefill_tokens_s": [100.0, 250.5],
    "decode_tokens_s": [10.0, 20.25],
    "decode_full_context_tokens_s": [5.0, 9.0],
}


def plan(**fields: Any) -> m.PlanGroupReply:
    whole = {
        "model": "qwen", "verdict": "group", "hosts_needed": 2, "split": "pipeline",
        "reason": "this machine alone is too small", "context": 32768, "parallel": 4,
        "kv": "fp16",
        "alone": {"strategy": "refused", "summary": "", "prediction": None},
        "ranks": [
            {"rank": 0, "host": "this machine", "kind": "pipeline", "first_layer": 0,
             "last_layer": 9, "parts": 1, "weight_bytes": 5 * 10**9,
             "kv_bytes_per_token": 65536, "needed_bytes": 7 * 10**9,
             "available_bytes": 9 * 10**9, "limit": "x"},
            {"rank": 1, "host": "studio", "kind": "tensor", "first_layer": None,
             "last_layer": None, "parts": 2, "weight_bytes": 10**9, "kv_bytes_per_token": 1,
             "needed_bytes": 2, "available_bytes": 3, "limit": "x"},
        ],
        "ways": [
            {"split": "tensor", "hosts": 2, "fits": False, "obstacle": "7 heads",
             "prediction": None},
            {"split": "pipeline", "hosts": 2, "fits": True, "obstacle": "", "prediction": SPEED},
        ],
        "hosts": [],
        "spread": False,
    }  # fmt: skip
    return m.PlanGroupReply(plan=json.dumps({**whole, **fields}))


def test_a_plan_says_how_many_hosts_what_each_holds_and_that_speeds_are_predicted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster_table.show_plan(plan())
    said = capsys.readouterr().out
    assert "qwen: needs 2 hosts, pipeline parallel" in said
    assert "why: this machine alone is too small" in said
    assert "layers 0 to 9" in said
    assert "1/2 of each layer" in said
    assert "5.0 GB" in said
    rows = {line.split("  ")[0]: line for line in said.splitlines()}
    assert rows["this machine"].endswith("too small")
    assert rows["tensor, 2 hosts"].endswith("7 heads")
    assert rows["pipeline, 2 hosts"].endswith("chosen")
    assert "10 to 20.2" in rows["pipeline, 2 hosts"]
    assert "predictions" in said
    assert 'to split it: `cluster = true` below [model."qwen"] in config.toml' in said
    cluster_table.show_plan(plan(spread=True))
    assert "to split it" not in capsys.readouterr().out


def test_a_plan_for_one_machine_names_no_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    alone = {"strategy": "resident", "summary": "", "prediction": SPEED}
    reply = plan(verdict="one", hosts_needed=1, split=None, ranks=[], ways=[], alone=alone)
    cluster_table.show_plan(reply)
    said = capsys.readouterr().out
    assert "qwen: fits on this machine" in said
    assert "RANK" not in said
    assert next(line for line in said.splitlines() if line.startswith("this ")).endswith("chosen")


def test_each_problem_stands_beside_its_host_and_what_mends_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    link = m.LinkMeasure(7, 1.1e9, 1.2e9, 1.3e9, 1e-5, 2e-5, 3e-5)
    cluster_table.show_checks(
        [
            m.HostCheck(host=m.ClusterHost("a", 0), version="1.2", mlx_version="0.32", link=link),
            m.HostCheck(
                host=m.ClusterHost("b", 1),
                problems=[m.HostProblem(m.HostProblemKind.MODEL_MISSING, "not there", "pull it")],
            ),
        ]
    )
    lines = capsys.readouterr().out.splitlines()
    assert "1.2 GB/s (1.1 GB to 1.3 GB)" in lines[1]
    assert "20 us (10 to 30)" in lines[1]
    assert lines[2].split() == ["b", "1", "to", "mend"]
    assert [part.strip() for part in lines[-1].split("  ") if part] == [
        "b", "model missing", "not there", "pull it",
    ]  # fmt: skip
