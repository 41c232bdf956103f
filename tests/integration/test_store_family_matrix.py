"""docs/models.md says of each family what a tiny model of it shows."""

from pathlib import Path

import family_matrix
import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"


pytestmark = pytest.mark.usefixtures("on_the_cpu")


def test_page_shows_what_each_family_can_do(tmp_path: Path) -> None:
    assert family_matrix.table(tmp_path) in PAGE.read_text(encoding="utf-8")
