from pathlib import Path

from swiftlmd.config.page import page
from swiftlmd.config.settings import OPTIONS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def test_the_page_of_options_is_what_the_options_say():
    """Mend with `python -m swiftlmd.config.page > docs/configuration.md`."""
    text = PAGE.read_text(encoding="utf-8")
    assert text == page()
    assert text.count("\n| `") == len(OPTIONS)
