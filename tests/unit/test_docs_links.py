"""Links between the pages: every file is there, and every heading that a link names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]*)\)")


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}


def broken(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if not target.exists():
        return True
    return bool(anchor) and target.suffix == ".md" and anchor not in anchors(target)


def test_every_link_of_the_documentation_leads_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in LINK.findall(page.read_text("utf-8"))]
    assert len(links) > 50
    assert [f"{page.name}: {link}" for page, link in links if broken(page, link)] == []


def reached_from(page: Path) -> set[Path]:
    links = [link.partition("#")[0] for link in LINK.findall(page.read_text("utf-8"))]
    return {(page.parent / link).resolve() for link in links if link}


def test_the_index_links_every_page_and_the_readme_links_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    assert index.resolve() in reached_from(ROOT / "README.md")
    pages = {page.resolve() for page in (ROOT / "docs").rglob("*.md")} - {index.resolve()}
    assert pages - reached_from(index) == set()
