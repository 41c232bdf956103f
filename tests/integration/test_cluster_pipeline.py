"""A model whose layers are on several ranks, all in this process: the logits of one rank."""

from __future__ import annotations

import gc
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from tiny_models import NAMES, make_model

from swiftlm_engine.brain.facts import read_model
from swiftlm_engine.brain.plan.share import Split
from swiftlm_engine.messages import EngineFault
from swiftlm_engine.run.row_caches import RowCaches
from swiftlm_engine.split.pipeline import install
from swiftlm_engine.split.placeholder_cache import AbsentCache
from swiftlm_engine.split.shares import choose_shares

PROMPTS = ([*range(9, 59)], [*range(200, 270)])
CHUNK = 40
QUICK = {"llama", "qwen3_moe", "gemma3_text", "falcon_h1", "deepseek_v32", "qwen3_next"}
REFUSED = {"gemma4", "gemma4_moe", "gemma4_e2b"}  # layers that hand on more than hidden states
EACH = [
    n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES if n not in REFUSED
]


class Row:
    """Hands hidden states on by running the next rank's forward pass on the spot."""

    def __init__(self) -> None:
        self.followers: list = []  # called in the order of the ranks, each with nothing
        self._sent: mx.array | None = None

    def send(self, h: mx.array) -> None:
        self._sent = h

    def receive(self, like: mx.array) -> mx.array:
        if self.followers:  # the leader waits: the others take their turn
            turns, self.followers = self.followers, []
            for turn in turns:
                turn()
        assert self._sent is not None
        assert (self._sent.shape, self._sent.dtype) == (like.shape, like.dtype)
        return self._sent


class Ranks:
    """Called like a model and its caches, of which each rank has its own."""

    def __init__(self, folder: Path, splits: list[range]) -> None:
        self.row = Row()
        self.models = [load_model(folder, lazy=True)[0] for _ in splits]
        self.needed = [
            install(m, own, self.row) for m, own in zip(self.models, splits, strict=True)
        ]

    def make_caches(self) -> list[list]:
        return [make_prompt_cache(model) for model in self.models]

    def __call__(self, ids: mx.array, caches: list[list]) -> mx.array:
        turns = zip(self.models[1:], caches[1:], strict=True)
        self.row.followers = [lambda m=m, c=c: m(ids, cache=c) for m, c in turns]
        return self.models[0](ids, cache=caches[0])

    def decode(self, ids: mx.array, rows: list[RowCaches]) -> mx.array:
        turns = zip(self.models[1:], rows[1:], strict=True)
        self.row.followers = [lambda m=m, r=r: r.forward(m, ids) for m, r in turns]
        return rows[0].forward(self.models[0], ids)


def splits_of(num_layers: int) -> list[list[range]]:
    half = num_layers // 2
    cuts = [[range(half), range(half, num_layers)]]
    if num_layers > 2:
        cuts.append([range(1), range(1, 2), range(2, num_layers)])
    return cuts


@pytest.mark.parametrize("family", EACH)
def test_a_model_over_several_ranks_has_the_logits_of_one(family, tmp_path):
    folder = make_model(family, tmp_path)
    whole, _ = load_model(folder)
    for splits in splits_of(len(whole.layers)):
        ranks = Ranks(folder, splits)
        expected, found = [], []
        caches, parts = make_prompt_cache(whole), ranks.make_caches()
        for start in range(0, len(PROMPTS[0]), CHUNK):
            ids = mx.array([PROMPTS[0][start : start + CHUNK]])
            expected.append(whole(ids, cache=caches))
            found.append(ranks(ids, parts))
        for token in (5, 9, 200):
            expected.append(whole(mx.array([[token]]), cache=caches))
            found.append(ranks(mx.array([[token]]), parts))
        for one, several in zip(expected, found, strict=True):
            assert mx.allclose(one, several, rtol=1e-4, atol=1e-4), splits


def test_a_family_whose_layers_hand_on_more_is_refused_by_name(tmp_path):
    folder = make_model("gemma4", tmp_path)
    ranks = Ranks(folder, [range(2), range(2, 4)])
    with pytest.raises(EngineFault, match="gemma4"):
        ranks(mx.array([PROMPTS[0]]), ranks.make_caches())


def test_rows_of_a_batch_are_the_same_rows_on_every_rank(tmp_path):
    folder = make_model("gemma3_text", tmp_path)
    whole, _ = load_model(folder)
    ranks = Ranks(folder, [range(3), range(3, 4)])
    expected, found = RowCaches(), [RowCaches() for _ in ranks.models]
    for prompt in PROMPTS:
        caches, parts = make_prompt_cache(whole), ranks.make_caches()
        whole(mx.array([prompt]), cache=caches)
        ranks(mx.array([prompt]), parts)
        expected.add(caches)
        for rows, part in zip(found, parts, strict=True):
            rows.add(part)
    for ids in ([5, 9], [200, 3]):
        one = expected.forward(whole, mx.array(ids))
        assert mx.allclose(one, ranks.decode(mx.array(ids), found), rtol=1e-4, atol=1e-4)
    for rows in (expected, *found):
        rows.remove(0)
    one = expected.forward(whole, mx.array([7]))
    assert mx.allclose(one, ranks.decode(mx.array([7]), found), rtol=1e-4, atol=1e-4)


def test_a_rank_needs_the_weights_of_its_layers_only(tmp_path):
    folder = make_model("llama", tmp_path, num_hidden_layers=4)
    whole, _ = load_model(folder)
    layer = sum(array.nbytes for _, array in tree_flatten(whole.layers[0].parameters()))
    total = sum(array.nbytes for _, array in tree_flatten(whole.parameters()))
    ranks = Ranks(folder, [range(1), range(1, 4)])
    held = [
        sum(a.nbytes for module in needed for _, a in tree_flatten(module.parameters()))
        for needed in ranks.needed
    ]
    assert held == [total - 3 * layer, 3 * layer]
    assert [isinstance(cache, AbsentCache) for cache in ranks.make_caches()[1]] == [True] + 3 * [
        False
    ]


def test_a_rank_reads_no_more_than_its_layers(tmp_path):
    folder = make_model("llama", tmp_path, num_hidden_layers=8, hidden_size=256)
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    model, _ = load_model(folder, lazy=True)
    kept = install(model, range(6, 8), Row())
    arrays = [array for module in kept for _, array in tree_flatten(module.parameters())]
    mx.eval(arrays)
    held = sum(array.nbytes for array in arrays)
    whole = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert held < whole / 3
    assert mx.get_peak_memory() - before < held * 1.1


def shares(folder, asked, memories):
    return choose_shares(read_model(folder), asked, memories)


def test_layers_are_shared_in_proportion_to_memory(tmp_path):
    folder = make_model("llama", tmp_path, num_hidden_layers=8)
    large = 1 << 40
    assert [s.layers for s in shares(folder, Split.PIPELINE, [large, 3 * large])] == [
        range(2),
        range(2, 8),
    ]


def test_the_split_is_tensor_parallel_where_the_family_can_be_cut_so(tmp_path):
    llama = make_model("llama", tmp_path / "llama")
    falcon = make_model("falcon_h1", tmp_path / "falcon")
    assert shares(llama, None, [1 << 40] * 2)[0].split is Split.TENSOR
    assert shares(llama, Split.PIPELINE, [1 << 40] * 2)[0].split is Split.PIPELINE
    assert shares(falcon, None, [1 << 40] * 2)[0].split is Split.PIPELINE
    with pytest.raises(EngineFault, match="falcon_h1"):
        shares(falcon, Split.TENSOR, [1 << 40] * 2)
    with pytest.raises(EngineFault, match="too few for 3"):
        shares(llama, Split.PIPELINE, [1 << 40] * 3)
