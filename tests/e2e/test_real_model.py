"""The whole service with the real SmolLM2: what a user sees on the first day.

The daemon and its engine are the real ones, from the checkout; installing is tested elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import psutil
import pytest
from live_daemon import free_port

from swiftlm_proto.exit_codes import CtlExit

pytestmark = pytest.mark.real_model

MODEL = "smollm2-135m"
QUESTION = "What is the capital of France?"
READY_S = 30.0


@dataclass
class Service:
    root: Path
    port: int
    environ: dict[str, str]
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=300)

    def ctl(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "swiftlmctl", *arguments],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=check,
        )

    def model(self) -> dict[str, object] | None:
        """What `status` says of the model."""
        status = json.loads(self.ctl("status", "--json").stdout)
        return next((one for one in status["models"] if one["model"] == MODEL), None)


@pytest.fixture(scope="module")
def service(smollm2: Path, room_path: str) -> Iterator[Service]:
    root = Path(tempfile.mkdtemp(prefix="sl", dir="/tmp"))
    shutil.copytree(smollm2, root / "models" / MODEL)
    port = free_port()
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(root),
        "SWIFTLM_HOME": str(root),
        "SWIFTLM_HTTP_PORT": str(port),
        "PYTHONPATH": room_path,
    }
    with (root / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "swiftlmd", "serve"], env=environ, stdout=output, stderr=output
        )
    try:
        running = Service(root, port, environ, process)
        _wait_until_ready(running)
        yield running
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(45)
        process.kill()
        shutil.rmtree(root, ignore_errors=True)


def _wait_until_ready(service: Service) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if service.process.poll() is not None:
            break
        if service.ctl("status", check=False).returncode == CtlExit.OK:
            return
        time.sleep(0.1)
    raise AssertionError(f"not ready: {(service.root / 'output').read_text()[-2000:]}")


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> str:
    """mlx-lm's own greedy answer, from the same folder, in a process of its own."""
    script = (
        "import sys\n"
        "from mlx_lm import generate, load\n"
        "model, tokenizer = load(sys.argv[1])\n"
        "chat = [{'role': 'user', 'content': sys.argv[2]}]\n"
        "prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True)\n"
        "print(generate(model, tokenizer, prompt, max_tokens=24), end='')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(smollm2), QUESTION],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout


def _ask(client: openai.OpenAI, **fields):
    fields.setdefault("max_tokens", 24)
    fields.setdefault("messages", [{"role": "user", "content": QUESTION}])
    return client.chat.completions.create(model=MODEL, temperature=0, **fields)


def test_chat_equals_mlx_lm_streamed_and_not(service, reference):
    assert "Paris" in reference
    with service.client() as client:
        whole = _ask(client)
        assert whole.choices[0].message.content == reference
        assert whole.choices[0].finish_reason == "stop"
        chunks = list(_ask(client, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert streamed == reference
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0


def test_completions_and_models_answer(service):
    with service.client() as client:
        done = client.completions.create(
            model=MODEL, prompt="The sky is", max_tokens=4, temperature=0
        )
        assert done.choices[0].text
        assert done.choices[0].finish_reason == "length"
        listed = {model.id for model in client.models.list()}
        assert MODEL in listed
        assert client.models.retrieve(MODEL).id == MODEL


def test_errors_reach_the_sdk_as_its_own_exceptions(service):
    with service.client() as client:
        with pytest.raises(openai.NotFoundError, match=MODEL):
            client.chat.completions.create(
                model="nowhere/nothing", messages=[{"role": "user", "content": "x"}]
            )
        with pytest.raises(openai.BadRequestError) as refused:
            _ask(client, messages=[{"role": "user", "content": "word " * 9000}])
        assert refused.value.code == "context_length_exceeded"
        assert "8192" in str(refused.value)
        for bad in ({"n": 0}, {"seed": -7}, {"logit_bias": {"999999": 5}}):
            with pytest.raises(openai.BadRequestError):
                _ask(client, **bad)


def test_status_tells_the_truth(service):
    with service.client() as client:
        _ask(client)
    model = service.model()
    assert model["state"] == "ready"
    assert psutil.pid_exists(model["pid"])
    assert model["stats"]["requests"] >= 1
    assert model["footprint_bytes"] > 50e6


def test_unload_ends_the_process_and_load_brings_it_back(service):
    service.ctl("load", MODEL)
    pid = service.model()["pid"]
    service.ctl("unload", MODEL)
    assert not psutil.pid_exists(pid)
    assert service.model()["state"] == "cached"
    service.ctl("load", MODEL)
    assert service.model()["state"] == "ready"


def test_engine_killed_mid_answer_costs_one_answer(service):
    service.ctl("load", MODEL)
    with service.client() as client:
        stream = iter(_ask(client, stream=True, max_tokens=400, extra_body={"ignore_eos": True}))
        for _ in range(4):
            next(stream)
        os.kill(service.model()["pid"], signal.SIGKILL)
        with pytest.raises(openai.APIError):
            list(stream)
        assert _ask(client).choices[0].message.content


def test_cli_answers_on_the_command_line(service):
    done = service.ctl("run", "--temperature", "0", QUESTION)
    assert "Paris" in done.stdout
    logs = service.ctl("logs", "-n", "20").stdout
    assert logs.strip()
    assert QUESTION not in logs


def test_config_set_is_kept_with_its_comments(service):
    service.ctl("config", "set", "models.keep_alive", "20m")
    shown = service.ctl("config", "get", "models.keep_alive").stdout
    assert "20m" in shown or "1200" in shown
    unknown = service.ctl("config", "set", "models.keep_alve", "1", check=False)
    assert unknown.returncode == CtlExit.FAILED
    assert "keep_alive" in unknown.stderr


def test_daemon_alone_is_small(service):
    service.ctl("unload", MODEL)
    assert psutil.Process(service.process.pid).memory_info().rss < 80e6


def test_documents_are_sorted_and_score_alone_as_among_others(service):
    documents = ["Cats purr when they are content.", "The train leaves at nine.", "Dogs bark."]

    def rerank(*texts: str) -> dict[str, float]:
        body = {"query": "Which animal purrs?", "documents": texts, "return_documents": True}
        found = httpx.post(f"{service.url}/rerank", json=body, timeout=250).json()["results"]
        scores = [one["relevance_score"] for one in found]
        assert scores == sorted(scores, reverse=True)
        return {one["document"]["text"]: one["relevance_score"] for one in found}

    together = rerank(*documents)
    for text in documents:
        assert rerank(text)[text] == pytest.approx(together[text], rel=1e-3)
    assert len(set(together.values())) == 3


def test_ollamas_api_says_what_chat_says(service):
    message = {"role": "user", "content": "What is the capital of France?"}
    body = {"messages": [message], "options": {"temperature": 0, "num_predict": 12}}
    root = service.url.removesuffix("/v1")
    name = httpx.get(f"{root}/api/tags", timeout=250).json()["models"][0]["name"]
    asked = {**body, "model": name, "stream": False}
    said = httpx.post(f"{root}/api/chat", json=asked, timeout=250).json()
    chat = _ask(service.client(), messages=[message], max_tokens=12)
    assert said["message"]["content"] == chat.choices[0].message.content
    assert said["eval_count"] == chat.usage.completion_tokens


def test_sigterm_drains_and_exits_zero(service):
    service.process.terminate()
    assert service.process.wait(45) == 0
    assert service.ctl("status", check=False).returncode == CtlExit.NOT_RUNNING
