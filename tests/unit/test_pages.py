"""Pages can be found, and what they link to is there."""

import re
from pathlib import Path

import pytest
from scripts.sentences import pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them from headings."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", list(pages()), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for link in _LINK.findall(_CODE.sub("", page.read_text())):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_every_page_is_in_the_index() -> None:
    linked = {link.partition("#")[0] for link in _LINK.findall((DOCS / "README.md").read_text())}
    assert {page.name for page in DOCS.glob("*.md")} - linked - {"README.md"} == set()


def test_every_decision_has_a_state_a_date_and_a_row() -> None:
    index = (DOCS / "adr" / "README.md").read_text()
    for page in DOCS.glob("adr/0*.md"):
        title, _, status = page.read_text().split("\n")[:3]
        found = re.fullmatch(r"Status: (accepted|replaced by \[.+\]\(.+\)), \d{4}-\d\d-\d\d\.", status)
        assert found, f"{page.name}: {status}"
        row = f"| {title[2:].replace('. ', ' | [', 1)}]({page.name}) | {status[len('Status: ') : -1]} |"
        assert row in index, f"docs/adr/README.md lacks: {row}"


def test_workflows_ask_for_what_the_makefile_has() -> None:
    makefile = (ROOT / "Makefile").read_text()
    asked = [
        target
        for page in (ROOT / ".github" / "workflows").glob("*.yml")
        for target in re.findall(r"run: make ([a-z-]+)", page.read_text())
    ]
    assert sorted(asked) == ["bench", "test"]
    assert [target for target in asked if f"\n{target}:" not in makefile] == []
