"""A host's share of a model: which files it needs, fetched from a hub, loaded by a rank."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from fake_hub import Cut, FakeHub, store_options
from mlx.utils import tree_flatten
from sharded_models import files, shard
from tiny_models import make_model

from swiftlm_engine.brain.facts import read_model
from swiftlm_engine.brain.plan.rank_files import files_of, held_layers, missing_files
from swiftlm_engine.brain.plan.share import Share, Split
from swiftlm_engine.load.device import Device
from swiftlm_engine.load.weights import load_weights
from swiftlm_engine.messages import EngineFault
from swiftlm_engine.split.shares import Place
from swiftlmd.hosts.fetching import Shares, Wish
from swiftlmd.store import PullProgress
from swiftlmd.store.errors import PullFailed

REPO = "org/tiny"
LAST = Share(Split.PIPELINE, range(2, 4))
NAMES = [f"model-{number:05d}-of-00004.safetensors" for number in range(1, 5)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shard(make_model("llama", tmp_path_factory.mktemp("whole"), num_hidden_layers=4))


@pytest.fixture
async def hub(model: Path) -> AsyncIterator[FakeHub]:
    async with FakeHub() as hub:
        hub.add(REPO, files(model))
        yield hub


@dataclass
class Ring:
    """Of two ranks, the second."""

    def rank(self) -> int:
        return 1

    def size(self) -> int:
        return 2


async def fetched(hub: FakeHub, model: Path, root: Path, share: Share = LAST) -> Path:
    shares = Shares(root / "shares", store_options(hub, root))
    wish = Wish(REPO, hub.repos[REPO].commit, read_model(model).fingerprint, share)
    await shares.fetch(wish, lambda progress: None)
    (folder,) = shares.folders()
    return folder


def loaded(folder: Path, share: Share) -> dict[str, mx.array]:
    def report(*words: Any) -> None:
        pass

    place = Place(Ring(), share)
    weights = load_weights(folder, "", Device.CPU, report, place=place)
    pairs = [tree_flatten(weights.model.layers[i].parameters()) for i in share.layers]
    return {f"{i}.{name}": array for i, found in enumerate(pairs) for name, array in found}


def test_a_share_lies_in_the_files_of_its_layers(model: Path) -> None:
    assert files_of(model, LAST) == set(NAMES[2:])
    assert files_of(model, Share(Split.PIPELINE, range(2))) == set(NAMES[:2])
    assert files_of(model, Share(Split.TENSOR, range(4), 2)) == set(NAMES)
    assert missing_files(model, None) == frozenset()
    assert held_layers(model) is None


async def test_a_host_fetches_its_layers_and_of_others_the_headers(
    hub: FakeHub, model: Path, tmp_path: Path
) -> None:
    hub.misbehave(NAMES[3], Cut(after=1000))  # and goes on where a transfer broke
    folder = await fetched(hub, model, tmp_path)
    for name in NAMES[:2]:
        assert hub.body_bytes(name) < (model / name).stat().st_size
    assert read_model(folder).fingerprint == read_model(model).fingerprint
    assert held_layers(folder) == {2, 3}
    expected, found = loaded(model, LAST), loaded(folder, LAST)
    assert expected.keys() == found.keys()
    assert all(mx.array_equal(found[name], expected[name]) for name in expected)


async def test_a_further_share_adds_to_what_is_there_and_no_rank_computes_with_holes(
    hub: FakeHub, model: Path, tmp_path: Path
) -> None:
    folder, more = await fetched(hub, model, tmp_path), Share(Split.PIPELINE, range(1, 4))
    assert missing_files(folder, LAST) == frozenset()
    assert missing_files(folder, more) == {NAMES[1]}
    with pytest.raises(EngineFault, match=f"it is without {NAMES[1]}"):
        loaded(folder, more)
    with pytest.raises(EngineFault, match="holds a share of the model"):
        load_weights(folder, "", Device.CPU, lambda *words: None)
    before = hub.body_bytes(NAMES[3])
    folder = await fetched(hub, model, tmp_path, more)
    assert held_layers(folder) == {1, 2, 3}
    assert hub.body_bytes(NAMES[3]) == before
    assert loaded(folder, more).keys() > loaded(folder, LAST).keys()


async def test_another_model_of_that_name_is_refused_before_its_weights_come(
    hub: FakeHub, model: Path, tmp_path: Path
) -> None:
    shares = Shares(tmp_path, store_options(hub, tmp_path))
    reports: list[PullProgress] = []
    with pytest.raises(PullFailed, match="not the model that the leader has"):
        await shares.fetch(Wish(REPO, hub.repos[REPO].commit, "f1", LAST), reports.append)
    assert reports == []
    assert list(shares.folders()) == []
