"""Which broker to ask about a queue: what becomes of its messages is known to whoever leads their partition.

Leaders may move while a command runs. Whoever does not lead any more says so, and then the next one is asked, for as
long as the server's timeout.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click

from penstock.cli import wire
from penstock.cli.connection import Refused, Server, server_of_words
from penstock.cli.failure import UNREACHABLE, CommandError
from penstock.cli.verbs import Led, Verbs

CANNOT_LIST: Final = "the queues cannot be listed"
MAKE_A_QUEUE: Final = "'penstock queue create NAME' makes one"
_NO_LEADER: Final = "LEADER_NOT_AVAILABLE"
_MOVED: Final = frozenset({"NOT_LEADER_OR_FOLLOWER", _NO_LEADER, "COORDINATOR_LOAD_IN_PROGRESS"})
_UNKNOWN: Final = frozenset({"GROUP_ID_NOT_FOUND", "UNKNOWN_TOPIC_OR_PARTITION"})
_RETRY_S: Final = 0.1


class QueueWord(click.ParamType[str]):
    """A queue's name, completed by asking the server."""

    name = "queue"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from penstock.engine.queues.names import parse_queue_name
        from penstock.errors import PenstockError

        try:
            return str(parse_queue_name(str(value)))
        except PenstockError as error:
            self.fail(f"{error}; {error.help}.", param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        try:
            with Verbs(server_of_words(ctx.params)) as verbs:
                found = fetch_names(verbs)
        except Exception:  # noqa: BLE001 - a completion has nobody to tell
            return []
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]


queue_argument = click.argument("queue", metavar="QUEUE", type=QueueWord())
queues_argument = click.argument("queues", metavar="QUEUE...", nargs=-1, required=True, type=QueueWord())
partitions_option = click.option(
    "-p",
    "--partition",
    "partitions",
    metavar="N",
    type=click.IntRange(0),
    multiple=True,
    help="Only this one; may be repeated.",
)


class Patience:
    """Waits a little each time, as long as the server's timeout in all."""

    def __init__(self, server: Server) -> None:
        self._deadline = time.monotonic() + server.timeout_s

    def wait(self) -> bool:
        """Whether there was time left to wait."""
        if time.monotonic() >= self._deadline:
            return False
        time.sleep(_RETRY_S)
        return True


class Leaders:
    """The brokers that lead the partitions of a queue's topic. All verbs raise `CommandError`.

    Attributes:
        queue: its name.
    """

    def __init__(self, server: Server, verbs: Verbs, queue: str) -> None:
        self.queue = queue
        self.topic = topic_of(queue)
        self.server = server
        self._verbs = verbs
        self._led: Led | None = None

    @property
    def partitions(self) -> list[int]:
        """All of them, also those without a leader."""
        return self._known.partitions

    def choose(self, numbers: Sequence[int]) -> list[int]:
        """The partitions that were named, or all. Raises for one that is not there."""
        known = self.partitions
        for number in numbers:
            if number not in known:
                raise CommandError(f"queue {self.queue!r} has no partition {number}; it has 0 to {max(known)}")
        return sorted(set(numbers)) or known

    def by_broker(self, numbers: Sequence[int]) -> dict[wire.Address | None, list[int]]:
        """Which broker leads which of some partitions; what nobody leads now is left out."""
        found: dict[wire.Address | None, list[int]] = {}
        for number in numbers:
            if number in self._known.leaders:
                found.setdefault(self._known.leaders[number], []).append(number)
        return found

    def forget(self) -> None:
        """Look again who leads, the next time."""
        self._led = None

    def ask(self, what: str, verb: str, partition: int, **fields: Any) -> Any:
        """Ask about one partition; if its leader moves, the next one."""
        patience = Patience(self.server)
        while True:
            at = self._known.leaders.get(partition)
            try:
                if partition not in self._known.leaders:
                    raise Refused(f"{what}: partition {partition} of topic {self.topic!r} has no leader", _NO_LEADER)
                return self.ask_at(at, what, verb, partition=partition, **fields)
            except CommandError as error:
                if not is_passing(error, at) or not patience.wait():
                    raise
            self.forget()

    def ask_at(self, at: wire.Address | None, what: str, verb: str, **fields: Any) -> Any:
        """Ask one broker."""
        return self._verbs.ask(what, verb, at=at, queue=self.queue, **fields)

    @property
    def _known(self) -> Led:
        if self._led is None:
            self._led = self._verbs.leaders(self.topic)
        return self._led


@contextmanager
def leaders_of(server: Server, queue: str) -> Iterator[Leaders]:
    """Those of a queue. What is asked of it raises `CommandError` with the name that may have been meant."""
    with Verbs(server) as verbs:
        try:
            yield Leaders(server, verbs, queue)
        except Refused as error:
            raise explain(verbs, queue, error) from None


def is_passing(error: CommandError, at: wire.Address | None) -> bool:
    """Whether the same question may be answered soon, by another broker perhaps."""
    if isinstance(error, Refused):
        return error.name in _MOVED
    return error.code == UNREACHABLE and at is not None


def is_unknown(error: Refused) -> bool:
    """Whether the queue, or its topic, is not there."""
    return error.name in _UNKNOWN


def not_there(queue: str) -> Refused:
    """As a server says it that knows."""
    return Refused(f"there is no queue {queue!r}", "GROUP_ID_NOT_FOUND")


def explain(verbs: Verbs, queue: str, error: Refused) -> CommandError:
    """The error itself, or for a queue that is not there one with the name that may have been meant."""
    if not is_unknown(error):
        return error
    try:
        known = fetch_names(verbs)
    except CommandError:
        return error
    return error if queue in known else unknown_queues([queue], known)


def unknown_queues(missing: Sequence[str], known: Sequence[str]) -> CommandError:
    import difflib

    told = []
    for name in missing:
        close = difflib.get_close_matches(name, known, n=1)
        told.append(f"no queue {name!r}" + (f", did you mean {close[0]}?" if close else ""))
    return CommandError(f"{'; '.join(told)} ('penstock queue list' shows them all; {MAKE_A_QUEUE})")


def fetch_names(verbs: Verbs) -> list[str]:
    """All queues that may be seen."""
    return [row["queue"] for row in verbs.rows(CANNOT_LIST, "queue.list", by="queue")]


def topic_of(queue: str) -> str:
    """No topic has a colon in its name."""
    return queue.partition(":")[0]
