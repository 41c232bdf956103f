"""Ends of text in a config that are no token ids are a fault of the folder, by name."""

from __future__ import annotations

import pytest

from swiftlm_engine.load.weights import _eos_ids


@pytest.mark.parametrize("ids", ["x", [[1]], [None], -1, 1.5, True, {"a": 1}])
def test_what_is_no_token_id_is_named(ids: object) -> None:
    with pytest.raises(ValueError, match="eos_token_id in"):
        _eos_ids({"eos_token_id": ids})


@pytest.mark.parametrize("ids", [None, 2, [2, 5], []])
def test_what_is_one_is_taken(ids: object) -> None:
    assert _eos_ids({"eos_token_id": ids}) == ids
