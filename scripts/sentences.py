"""Markdown with one sentence on each line, so that a change of one sentence is a change of one line.

    python scripts/sentences.py          names the places that are not so, and ends with 1
    python scripts/sentences.py --mend   breaks and joins lines until they are

Code blocks, tables, headings, quotes and HTML stay as they are. A sentence in brackets belongs to the one around it.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"\s*(```|~~~)")
_ITEM = re.compile(r"(\s*(?:[-*+]|\d+\.)\s+)(?=\S)")
_ALONE = re.compile(r"\s*$|\s*[|<>#]|\s*[-*_]{3,}\s*$|\s{4,}\S|\[[^\]]+\]: ")
"""A line that is neither the beginning nor the rest of a paragraph."""
_END = re.compile(r"[.!?][*_\"”')\]]*\s+(?=[*_\"“'(\[]*[`A-Z0-9]|\[)")
_NO_END = re.compile(r"\b(?:e\.g|i\.e|etc|vs|cf|approx|No)\.$|^\*{1,2}[^*]+$")
"""An abbreviation, or marked words that head what follows them."""


def mended(text: str) -> str:
    """The same text, one sentence on each line."""
    lines: list[str] = []
    for first, rest, paragraph in _paragraphs(text.split("\n")):
        if paragraph is None:
            lines.append(first)
            continue
        for number, sentence in enumerate(_sentences(paragraph)):
            lines.append((rest if number else first) + sentence)
    return "\n".join(lines)


def _paragraphs(lines: Sequence[str]) -> Iterator[tuple[str, str, str | None]]:
    """What the first and the other lines of a paragraph begin with, and its text; a line that is none as it is."""
    fenced, at = False, 0
    while at < len(lines):
        line = lines[at]
        at += 1
        item = _ITEM.match(line)
        if _FENCE.match(line):
            fenced = not fenced
        if fenced or _FENCE.match(line) or (_ALONE.match(line) and not item):
            yield line, "", None
            continue
        first = item[1] if item else line[: len(line) - len(line.lstrip())]
        words = [line[len(first) :].strip()]
        while at < len(lines) and _goes_on(lines[at], len(first)):
            words.append(lines[at].strip())
            at += 1
        yield first, " " * len(first), " ".join(words)


def _goes_on(line: str, indent: int) -> bool:
    within = line[indent:] if not line[:indent].strip() else line
    return not (_FENCE.match(line) or _ITEM.match(line) or _ALONE.match(within))


def _sentences(text: str) -> Iterator[str]:
    begin = 0
    for end in _END.finditer(text):
        before = text[: end.start() + 1]
        if not _inside(before) and not _NO_END.search(before[begin:]):
            yield text[begin : end.end()].rstrip()
            begin = end.end()
    yield text[begin:]


def _inside(before: str) -> bool:
    """Whether the place behind this text is within code or brackets."""
    if before.count("`") % 2:
        return True
    plain = re.sub(r"`[^`]*`", "", before)
    return any(plain.count(opening) > plain.count(closing) for opening, closing in ("()", "[]"))


def pages() -> Iterator[Path]:
    """Every Markdown file of the repository."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "*.md"]
    told = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)  # noqa: S603 - git itself
    return (_ROOT / name for name in told.stdout.split() if (_ROOT / name).exists())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mend", action="store_true", help="write the files as they should be")
    arguments = parser.parse_args()
    wrong = 0
    for path in pages():
        text = path.read_text()
        better = mended(text)
        if better == text:
            continue
        wrong += 1
        if arguments.mend:
            path.write_text(better)
        else:
            pairs = zip(text.split("\n"), better.split("\n"), strict=False)
            number = next((at for at, (old, new) in enumerate(pairs, 1) if old != new), 1)
            print(
                f"{path.relative_to(_ROOT)}:{number}: not one sentence on a line; python scripts/sentences.py --mend",
                file=sys.stderr,
            )
    return 1 if wrong and not arguments.mend else 0


if __name__ == "__main__":
    sys.exit(main())
