"""The pages lead to each other: every link resolves, and every page is found from the README."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("runbooks/*.md")]
ELSEWHERE = re.compile(r"[a-z]+:")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """Return what a page links to or shows within the repository."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    found: list[str] = re.findall(r"\]\(([^)\s]+)\)", text)
    return [link for link in found if not ELSEWHERE.match(link)]


def anchors(page: Path) -> set[str]:
    """Return the anchors that a renderer gives the headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_resolves() -> None:
    broken = []
    for page in PAGES:
        for link in links(page):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert len(PAGES) > 15
    assert broken == []


def test_every_page_is_found_from_the_readme() -> None:
    found = {ROOT / "README.md"}
    unread = list(found)
    while unread:
        page = unread.pop()
        for link in links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            pages = target.glob("*.md") if target.is_dir() else [target]
            fresh = {each for each in pages if each.suffix == ".md"} - found
            found |= fresh
            unread += fresh
    assert {str(page.relative_to(ROOT)) for page in set(PAGES) - found} == set()
