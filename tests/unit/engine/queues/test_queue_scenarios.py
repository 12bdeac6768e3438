"""Queues by example: each file in tests/scenarios/queue is a story, and must be told exactly like that.

A line is something that happens; indented lines are all that comes of it: what a consumer was given, with the counts
of deliveries and of failed attempts, each entry that is kept in the ledger (`kept:`), and what was refused. After every
line the entries alone make the same state again, and so does the state as it would be saved.

    queue NAME [SETTING=VALUE …]   is made, or has other settings
    send [N] [size=1KiB] [ttl=5s] [delay=5s] [at=9s] [priority=high] [tenant=WORD] [key=WORD]
    anna: lease [N] [for=1m] [bound] [lane=high]                     what the machine gives her
    anna: receive [N] [bytes=1KiB] [lane=high]                       the same, and its messages are read
    anna: ack|nack|release|reject|extend OFFSETS [delay=5s] [reason=WORD] [for=1m] [by-name]
    anna: ack OFFSETS producer=7   if the transaction of producer 7 commits
    commit N                       the marker of a producer's transaction comes        abort N
    anna: play N                   leases and releases one message so often; the last time is told
    anna: leave                    gives back what she has           anna: vanish     is lost with it
    gap N                          offsets without a message, as markers of transactions are
    anew START                     the queue begins anew             delete
    purge [BEFORE]                 trim BEFORE                       retention has removed what is older
    redrive OFFSETS to=QUEUE       show                              dead OFFSET
    bury [N]                       the next dead letters are noted   buried           they are written
    forget                         they cannot be written            +1s
    restart                        the machine is made again from its entries
    failover [lost=N] [end=OFFSET] [behind=5s] [blind]   another leader, without the last entries, messages, or with
                                   a clock that is behind; or before it has looked at any message
    look [N]                       so many more messages are looked at, or all
    save [N]                       the state is written into the log again, or N pieces of it

Consumers give back the receipt of the lease they had a message in last, or with `by-name` none, as share consumers do.
A line is about the first queue unless it says `in=NAME`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.message_log import reading
from tests.unit.engine.queues.queue_story import Story

SCENARIOS = Path(__file__).parents[3] / "scenarios" / "queue"


@pytest.fixture(autouse=True)
def _reading() -> Iterator[None]:
    with reading():
        yield


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
    assert len(list(SCENARIOS.glob("*.txt"))) > 12
