"""docs/models.md says of each family what a tiny model of it shows."""

from pathlib import Path

import family_matrix
import mlx.core as mx
import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"


@pytest.fixture(autouse=True)
def _on_the_cpu():
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


def test_page_shows_what_each_family_can_do(tmp_path: Path) -> None:
    assert family_matrix.table(tmp_path) in PAGE.read_text(encoding="utf-8")
