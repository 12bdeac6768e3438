"""A queue over the records of a cell: consumers lease and settle what its producers send, and dead letters are read.

The queue is the topic of the cell, so whom the fault strikes by that topic leads the queue as well.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Self

from penstock.quantities import parse_duration_ms
from tests.chaos.history import History, Outcome
from tests.chaos.load import wait_until
from tests.chaos.queue_history import Place, QueueHistory, Rules, Verdict
from tests.chaos.queue_load import QueueLoad, make_queue, read_letters
from tests.chaos.share_load import ShareLoad
from tests.chaos.sorted_history import SortedHistory
from tests.chaos.sorted_messages import Said

from .arena import Arena
from .judge import Finding, judge_replicas, longest_gap
from .replicas import Batch, read_batches

RULES = Rules(limit=3, visibility_s=3.0, backoff_s=1.0)
_SETTINGS = {"visibility": "3s", "backoff": "fixed:1s", "max-attempts": str(RULES.limit), "durable": "true"}
_SHARED_VISIBILITY = "15s"
"""A share consumer has records before it is asked for them, for how long nobody knows."""
_EACH = 2
_MOST = 20
_SAME_S = 20.0
_STARTED_S = 60.0


class Queueing:
    """Use as a context manager.

    Args:
        sends: what producers know of the topic.
        shares: the consumers are Kafka's share consumers, whose leases end with their sessions.
        settings: of the queue, beside those that all have.
        said: what the messages say, if they are not alike; the queue is ordered by key then.
    """

    def __init__(
        self,
        arena: Arena,
        topic: str,
        partitions: int,
        sends: History,
        *,
        seed: int,
        patience_s: float,
        shares: bool = False,
        settings: Mapping[str, str] | None = None,
        said: Mapping[str, Said] | None = None,
    ):
        self._arena, self._topic, self._partitions, self._sends = arena, topic, partitions, sends
        bootstrap = arena.cluster.bootstrap
        given = {**_SETTINGS, **(settings or {})}
        if shares:
            given["visibility"] = _SHARED_VISIBILITY
        if said is not None:
            given["kind"] = "fifo"
        make_queue(bootstrap, topic, given)
        self.history = QueueHistory(RULES._replace(visibility_s=0) if shares else RULES)
        if said is not None:
            self.history = SortedHistory(RULES, said=said, delay_ms=parse_duration_ms(given.get("delay", "0ms")))
        self.load = (ShareLoad if shares else QueueLoad)(
            bootstrap, topic, partitions, self.history, seed=seed, each=_EACH, patience_s=patience_s, most=_MOST
        )
        self.letters = 0

    def __enter__(self) -> Self:
        self.load.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.load.__exit__()

    def warm_up(self, acks: int) -> None:
        self.load.wait_for_acks(acks, range(self._partitions), _STARTED_S)

    def longest_gap(self, partitions: "range | list[int]", began: float, ended: float) -> float:
        return max(longest_gap(self.history.acks[each], began, ended) for each in partitions)

    def finish(self, timeout_s: float) -> list[Finding]:
        """All is sent: have the queue be emptied, and judge what became of every message."""
        found = [Finding("consumer", text) for text in self.load.broken]
        self.load.drain(timeout_s)
        letters = read_letters(self._arena.cluster.bootstrap, self._topic)
        self.letters = len(letters)
        sent = self._sent()
        tried = {send.value: send.partition for send in self._sends.sends()}
        found += [Finding(kind, f"queue: {text}") for kind, text in self.history.check(sent, tried, letters)]
        return found + judge_replicas(self._ledgers(), trimmed=True)

    def _sent(self) -> Mapping[Place, str]:
        return {
            (send.partition, send.offset): send.value
            for send in self._sends.sends()
            if send.outcome is Outcome.OK and send.offset is not None
        }

    def _ledgers(self) -> dict[int, dict[int, list[Batch]]]:
        """What lies on the disks of each partition's ledger, when that is the same or no longer about to be."""
        ledgers: dict[int, dict[int, list[Batch]]] = {}

        def are_same() -> bool:
            for index in range(self._partitions):
                ledgers[index] = {
                    number: read_batches(machine.data / "logs" / f"{self._topic}~queue" / str(index))
                    for number, machine in self._arena.machines.items()
                }
            assert all(any(replicas.values()) for replicas in ledgers.values()), "there is no ledger on any disk"
            return not judge_replicas(ledgers, trimmed=True)

        with suppress(TimeoutError):  # the judge says in what they differ
            wait_until(are_same, _SAME_S, "all replicas of the ledgers hold the same")
        return ledgers

    def told(self) -> str:
        """For a person."""
        said = [each.verdict for each in self.history.deliveries]
        return (
            f"{len(said):,} deliveries, {self.history.acked:,} acked, {said.count(Verdict.NACK):,} nacks, "
            f"{said.count(None):,} leases left to end, {self.letters:,} dead letters"
        )
