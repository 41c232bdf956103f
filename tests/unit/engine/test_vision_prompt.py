"""The images of a prompt: their positions, and what the prefix cache knows them by."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np

from swiftlm_engine.brain.vision import REQUIREMENTS
from swiftlm_engine.vision.prompt import PreparedImage, place

ROOT = Path(__file__).resolve().parents[3]
MARK = 9


def image(name: bytes, num_tokens: int) -> PreparedImage:
    return PreparedImage(name * 32, np.zeros((1, 1, 3), np.uint8), "", num_tokens)


def test_each_image_gets_its_tokens_in_order():
    placed = place([1, MARK, MARK, 2, MARK, 3], MARK, [image(b"a", 2), image(b"b", 1)])
    assert [list(one.positions) for one in placed.placed] == [[1, 2], [4]]


def test_tokens_that_are_not_the_images_alone_have_no_place():
    assert place([1, MARK, MARK, MARK], MARK, [image(b"a", 2)]) is None
    assert place([1, MARK], MARK, [image(b"a", 2)]) is None


def test_a_chunk_knows_which_rows_of_which_image_it_holds():
    placed = place([MARK, MARK, 1, MARK, MARK], MARK, [image(b"a", 2), image(b"b", 2)])
    rows = [(r.image.digest[:1], r.start, r.end, list(r.positions)) for r in placed.rows(1, 4)]
    assert rows == [(b"a", 1, 2, [1]), (b"b", 0, 1, [3])]
    assert not placed.touch(2, 3)


def test_two_pictures_have_other_ids_in_the_cache_and_one_picture_has_the_same():
    tokens = [1, MARK, MARK, MARK, 2]
    red, blue = (place(tokens, MARK, [image(name, 3)]) for name in (b"a", b"b"))
    ids = red.cache_ids(tokens)
    assert ids == place(tokens, MARK, [image(b"a", 3)]).cache_ids(tokens)
    assert (ids[0], ids[4]) == (1, 2)
    assert not set(ids[1:4]) & set(blue.cache_ids(tokens)[1:4])
    assert len(set(ids[1:4])) == 3
    assert all(2**31 <= key < 2**32 for key in ids[1:4])  # no token, and it packs
    assert red.cache_ids(tokens[:2]) == ids[:2]


def test_the_command_of_the_refusal_installs_what_is_locked_for_the_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert tuple(extras["optional-dependencies"]["vision"]) == REQUIREMENTS
    locked = (ROOT / "locks" / "vision.txt").read_text()
    assert all(f"\n{one.split('>')[0]}==" in f"\n{locked}" for one in REQUIREMENTS)
