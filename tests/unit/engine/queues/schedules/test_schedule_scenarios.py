"""The stories in `tests/scenarios/schedule`: what schedules of a queue come to, line by line.

A line is what happens; the indented ones below it are all that comes of it. Times are UTC, without the year, and each
story begins at noon on 28 March 2026. After every line the entries alone make the same state again, so do the last of
each key, as compaction leaves them, and so does the state as it would be saved.

    add NAME cron=30_3_*_*_* zone=Europe/Berlin        pause NAME    resume NAME    remove NAME    forget    show
    +1h, -1h           the wall clock goes, or is set
    note [PARTITION]   what is due is noted, and will be published to that partition
    publish            it is; its log takes a batch once
    done               and that is kept            undo          it was not, and cannot be any more
    fire               note, publish and done      pass NAME     what is due of it can never be published
    restart [lost=N]   also a failover, perhaps without the last entries
"""

from pathlib import Path

import pytest
from tests.unit.engine.queues.schedules.schedule_story import Story

SCENARIOS = Path(__file__).parents[4] / "scenarios" / "schedule"


def retell(text: str) -> str:
    """The scenario with what really comes of each line."""
    story, lines = Story(), []
    for line in text.splitlines():
        if line.startswith(" "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += ["    " + outcome for outcome in story.tell(line)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_the_story_goes_as_written(path: Path) -> None:
    text = path.read_text()
    assert retell(text) == text


def test_there_are_stories() -> None:
    assert len(list(SCENARIOS.glob("*.txt"))) >= 6
