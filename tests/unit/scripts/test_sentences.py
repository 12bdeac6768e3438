"""Markdown with one sentence on each line."""

import pytest
from scripts.sentences import mended

BROKEN = {
    "A sentence that\ngoes on. Another one.": "A sentence that goes on.\nAnother one.",
    "- An item. It goes\n  on.\n- Another.": "- An item.\n  It goes on.\n- Another.",
    "1. First. More.\n2. Second.": "1. First.\n   More.\n2. Second.",
    "**Head.** What follows it.\nMore.": "**Head.** What follows it.\nMore.",
    "Is it (it is. Really) so? `It` is. 5 are.": "Is it (it is. Really) so?\n`It` is.\n5 are.",
    "Some, e.g. Kafka, `a. B` and 4.3 stay. This not.": "Some, e.g. Kafka, `a. B` and 4.3 stay.\nThis not.",
    "One page. [another](b.md) has it.": "One page.\n[another](b.md) has it.",
    "Text\n```\nA. B\nC\n```\nmore.": "Text\n```\nA. B\nC\n```\nmore.",
}
AS_THEY_ARE = [
    "| A. B | C |\n|---|---|",
    "# A. B\n\nText.",
    "    A. B\n    C",
    "> A. B",
    "<b>A. B</b>",
    "Text:\n\n- a\n- b\n",
]


@pytest.mark.parametrize("text", BROKEN)
def test_sentences_get_lines_of_their_own(text: str) -> None:
    assert mended(text) == BROKEN[text]
    assert mended(BROKEN[text]) == BROKEN[text]


@pytest.mark.parametrize("text", AS_THEY_ARE)
def test_what_is_no_prose_stays(text: str) -> None:
    assert mended(text) == text
