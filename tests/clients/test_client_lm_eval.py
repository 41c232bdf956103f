"""lm-eval scores a multiple-choice task over `/v1/completions`, with the server's tokenizer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from client_programs import DEADLINE_S
from client_server import running
from scripted_backend import MODEL, Script, ScriptedBackend

from swiftlm_proto import messages as m

pytestmark = pytest.mark.client("lm-eval")

TASK = """task: capitals
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "Q: {{question}} A:"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}]
"""
QUESTIONS = [
    {"question": "Norway?", "choices": ["Oslo", "Rome"], "answer": 0},
    {"question": "Italy?", "choices": ["Oslo", "Rome"], "answer": 1},
]


class Scorer(ScriptedBackend):
    """Tokens are bytes; Oslo is likelier than Rome whatever was asked."""

    def script_of(self, request: m.GenerateRequest) -> Script:
        ids = request.token_ids.ids
        likely = bytes(ids).endswith(b"Oslo")
        rows = [
            m.TokenLogprob(
                token_id=i,
                token=bytes([i]),
                logprob=-0.1 if likely else -2.0,
                top=[m.TokenLogprob(token_id=i, token=bytes([i]), logprob=-0.1)],
            )
            for i in ids
        ]
        rows[0].logprob = float("nan")
        answer = m.Delta(content=bytes(ids).decode(), logprobs=rows)
        return Script((answer,), reason=m.FinishedReason.LENGTH)


def test_lm_eval_scores_choices_with_the_remote_tokenizer(tmp_path: Path):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed; see requirements.txt")
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    (tmp_path / "capitals.yaml").write_text(TASK.replace("DATA", str(data)))
    backend = Scorer()
    with running(backend=backend) as server:
        where = f"model={MODEL},base_url={server.v1}/completions,max_retries=1"
        options = {
            "--model": "local-completions",
            "--model_args": f"{where},tokenizer_backend=remote,tokenized_requests=True",
            "--tasks": "capitals",
            "--include_path": str(tmp_path),
            "--output_path": str(tmp_path / "out"),
        }
        words = [word for option in options.items() for word in option]
        done = subprocess.run(
            [sys.executable, "-m", "lm_eval", "run", *words],
            capture_output=True,
            text=True,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
            timeout=DEADLINE_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    [written] = (tmp_path / "out").rglob("results*.json")
    assert json.loads(written.read_text())["results"]["capitals"]["acc,none"] == 0.5
    assert all(request.echo for request in backend.requests)
