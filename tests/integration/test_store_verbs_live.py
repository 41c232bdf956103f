"""swiftlmctl's verbs about models against the real daemon and a hub on loopback."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, Slow, model_files, until
from gguf import GGMLQuantizationType as Type
from live_daemon import Home, LiveDaemon, daemon, home
from tiny_gguf import write_gguf
from tiny_models import make_model

from swiftlm_proto import messages as m
from swiftlm_proto.paths import under

NAME = "org/tiny-mlx"


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    async with FakeHub() as hub:
        hub.add(NAME, model_files())
        yield hub


@pytest.fixture
async def place(hub: FakeHub) -> AsyncIterator[Home]:
    async with home("tiny") as found:
        found.environ |= {
            "HF_HOME": str(found.root / "hf"),
            "HF_ENDPOINT": hub.url,
            "HF_HUB_OFFLINE": "0",
            "HF_TOKEN": "",
        }
        yield found


@pytest.fixture
async def live(place: Home) -> AsyncIterator[LiveDaemon]:
    async with daemon(place) as running:
        yield running


async def ctl(place: Home, *words: str, code: int = 0) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "swiftlmctl", *words,
        cwd=place.root,
        env={**os.environ, **place.environ, "SWIFTLM_HOME": str(place.root),
             "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    assert process.returncode == code, out.decode()
    return out.decode()


async def test_pull_show_fit_and_remove(live: LiveDaemon, place: Home) -> None:
    assert f"{NAME} is here" in await ctl(place, "pull", NAME)
    fitted = json.loads(await ctl(place, "models", "list", "--json"))
    verdicts = {model["model"]: model["fit"]["verdict"] for model in fitted}
    assert verdicts == {"tiny": "fits", NAME: "fits"}
    head, *rows = (await ctl(place, "models")).splitlines()
    assert head.split()[:6] == ["MODEL", "STATE", "SIZE", "FIT", "CONTEXT", "TOK/S"]
    assert next(row for row in rows if NAME in row).count("apache-2.0") == 1
    shown = await ctl(place, "models", "show", NAME)
    assert "verdict" in shown
    assert "tokens/s" in shown
    usage = json.loads(await ctl(place, "models", "du", "--json"))
    assert {row["name"] for row in usage["rows"]} >= {"tiny", NAME}
    await ctl(place, "models", "rm", NAME, "--yes")
    listed = json.loads(await ctl(place, "models", "--json"))
    assert [model["model"] for model in listed] == ["tiny"]


def keep_prefix(place: Home, folder: str) -> Path:
    """As an engine has left it when it was unloaded."""
    kept = under(place.root).cache / "prefix" / folder / "0123456789abcdef" / "block.kv"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"my bank code is four two")
    return kept


async def test_conversations_of_a_model_that_is_not_loaded_can_be_deleted(
    live: LiveDaemon, place: Home
) -> None:
    """Those of models that are gone from the disk go by themselves (test_kept_prefixes.py)."""
    tiny = keep_prefix(place, "tiny")
    assert "tiny" in await ctl(place, "cache", "clear", "tiny")
    assert not tiny.exists()


async def test_conversations_go_with_their_model(live: LiveDaemon, place: Home) -> None:
    await ctl(place, "pull", NAME)
    kept, tiny = keep_prefix(place, "org--tiny-mlx"), keep_prefix(place, "tiny")
    await ctl(place, "models", "rm", NAME, "--yes")
    assert not kept.exists()
    assert tiny.exists()


async def test_search_says_what_runs_here(live: LiveDaemon, place: Home) -> None:
    found = json.loads(await ctl(place, "models", "search", "tiny", "--refresh", "--json"))
    assert [(x["model"], x["here"], x["fit"]["verdict"]) for x in found] == [(NAME, False, "fits")]
    catalogue = await ctl(place, "models", "search")
    assert "mlx-community/Qwen3-0.6B-4bit" in catalogue
    assert "~ fits" in catalogue


async def test_gguf_and_folders_are_taken_by_relative_paths(live: LiveDaemon, place: Home) -> None:
    folder = await asyncio.to_thread(make_model, "llama", place.root / "mine")
    await asyncio.to_thread(write_gguf, folder, place.root / "t.gguf", "llama", Type.Q8_0)
    assert "no loss" in await ctl(place, "import", "t.gguf")
    assert "mine is listed" in await ctl(place, "models", "add", "mine")
    assert "mine is here" in await ctl(place, "pull", "./mine")
    assert "mine-4bit is here" in await ctl(place, "convert", "mine")
    names = {model["model"] for model in json.loads(await ctl(place, "models", "--json"))}
    assert names == {"tiny", "t", "mine", "mine-4bit"}


async def test_offline_holds_from_the_moment_it_is_set(
    live: LiveDaemon, place: Home, hub: FakeHub
) -> None:
    await ctl(place, "config", "set", "hub.offline", "true")
    for words in (("pull", NAME), ("models", "search", "tiny")):
        assert "offline" in await ctl(place, *words, code=1)
    assert not hub.log
    await ctl(place, "config", "set", "hub.offline", "false")
    assert f"{NAME} is here" in await ctl(place, "pull", NAME)


async def test_failures_are_one_line_and_exit_one(live: LiveDaemon, place: Home) -> None:
    for words in (
        ("pull", "org/none"),
        ("import", "none.gguf"),
        ("models", "add", "."),
        ("models", "repair", "tiny"),
        ("convert", "none"),
    ):
        said = await ctl(place, *words, code=1)
        assert said.count("\n") <= 3, said  # progress so far, the error, its hint
        assert "Traceback" not in said


async def test_pull_can_be_cancelled_from_another_terminal(
    live: LiveDaemon, place: Home, hub: FakeHub
) -> None:
    hub.add(NAME, model_files(1_000_000))
    hub.misbehave("model.safetensors", Slow(50_000))
    pulling = asyncio.create_task(ctl(place, "pull", NAME, code=1))
    await until(lambda: hub.body_bytes("model.safetensors") > 0)
    status = json.loads(await ctl(place, "status", "--json"))
    assert [download["model"] for download in status["downloads"]] == [NAME]
    await ctl(place, "pull", NAME, "--cancel")
    assert "cancelled" in await pulling
    status = json.loads(await ctl(place, "status", "--json"))
    assert not status["downloads"]


async def test_killed_daemon_goes_on_with_its_pull(place: Home, hub: FakeHub) -> None:
    hub.add(NAME, model_files(1_000_000))
    hub.misbehave("model.safetensors", Slow(200_000))
    async with daemon(place) as first:
        pulling = asyncio.create_task(ctl(place, "pull", NAME, code=1))
        await until(lambda: hub.body_bytes("model.safetensors") > 200_000)
        first.child.kill()
        await first.child.wait()
        await pulling
    async with daemon(place) as second:

        async def is_here() -> bool:
            listed = (await second.admin.list_models(m.ListModelsRequest())).models
            return any(x.model == NAME and not x.error for x in listed)

        await until(is_here)
    starts = [served.start for served in hub.log if served.path.startswith("/cdn/")]
    assert len(starts) == 2
    assert starts[1] > 100_000


async def test_a_hub_model_is_planned_before_it_is_fetched_and_fetched_on_first_use(
    live: LiveDaemon, place: Home
) -> None:
    plan = json.loads(await ctl(place, "plan", NAME, "--json"))
    assert (plan["here"], plan["strategy"]) == (False, "resident")
    assert plan["checkpoint_bytes"] > 0
    assert NAME not in await ctl(place, "models")
    refused = await ctl(place, "plan", NAME, "--memory-budget", "1MB", code=8)
    assert "and 1.0 MB are available" in refused
    said = await ctl(place, "load", NAME, code=1)  # nobody can be asked
    assert "takes" in said
    assert "--yes" in said
    assert "is loaded" in await ctl(place, "load", NAME, "--yes")
    assert NAME in await ctl(place, "models")
    assert json.loads(await ctl(place, "plan", NAME, "--json"))["here"]


async def test_a_stream_counts_the_download_of_a_model_that_was_not_here(
    place: Home, hub: FakeHub
) -> None:
    hub.add(NAME, model_files(400_000))
    hub.misbehave("model.safetensors", Slow(150_000))
    body = {"model": NAME, "messages": [{"role": "user", "content": "hello"}], "stream": True}
    async with daemon(place, models__on_missing="pull", http__keepalive="1s") as live:
        async with live.http.post("/v1/chat/completions", json=body) as reply:
            assert reply.status == 200, await reply.text()
            lines = (await reply.text()).splitlines()
        told = [line for line in lines if line.startswith(": pull ")]
        assert told
        assert all(line.partition(" bytes")[0].split("/")[1].isdecimal() for line in told)
        assert lines[-2 if not lines[-1] else -1] == "data: [DONE]"
        async with live.http.get("/v1/models") as reply:
            assert NAME in {row["id"] for row in (await reply.json())["data"]}
        path = {"model": str(place.root / "elsewhere"), "messages": body["messages"]}
        async with live.http.post("/v1/chat/completions", json=path) as reply:
            assert reply.status == 404  # a client's path is never fetched


async def test_a_plain_word_is_answered_with_the_nearest_local_name(
    live: LiveDaemon, place: Home
) -> None:
    for verb in (("load", "Tinny"), ("run", "-m", "Tinny", "hi"), ("plan", "Tinny")):
        said = await ctl(place, *verb, code=1)
        assert "did you mean 'tiny'?" in said
        assert "pull" not in said


async def test_a_folders_path_works_wherever_a_name_does(live: LiveDaemon, place: Home) -> None:
    folder = place.root / "elsewhere" / "mine"
    folder.mkdir(parents=True)
    for name, content in model_files().items():
        (folder / name).write_bytes(content)
    assert json.loads(await ctl(place, "plan", "./elsewhere/mine", "--json"))["here"]
    assert "is loaded" in await ctl(place, "load", str(folder))
    await ctl(place, "run", "-m", "./elsewhere/mine", "hello")
    assert "verdict" in await ctl(place, "models", "show", str(folder))
    assert "is unloaded" in await ctl(place, "unload", "./elsewhere/mine")
    unknown = await ctl(place, "models", "repair", "./elsewhere/mine", code=1)
    assert "'mine' came from" in unknown  # its model was found
    unpacked = await ctl(place, "pack", str(folder), code=1)
    assert "mine could not be packed" in unpacked
    assert "Traceback" not in unpacked
    assert "mine" in await ctl(place, "models", "rm", "./elsewhere/mine", "--yes")
    assert folder.is_dir()  # a user's folder is only taken off the list
    for verb in (("models", "rm", "-y"), ("models", "repair"), ("pack",), ("convert",)):
        said = await ctl(place, *verb, str(folder), code=1)
        assert f"`swiftlmctl models add {folder}` lists it" in " ".join(said.split())
    assert "does not exist" in await ctl(place, "load", "./nowhere", code=1)
    for weights in (*folder.glob("*.safetensors"), *folder.glob("*.bin")):
        weights.unlink()
    assert "*.safetensors" in await ctl(place, "load", "./elsewhere/mine", code=1)
