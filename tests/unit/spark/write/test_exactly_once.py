"""One transaction, a driver and its tasks, against a real broker: what is committed, and what is given up."""

import contextlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.relay import ANSWER, END_TXN, FETCH, PRODUCE, REQUEST, Cut, Relay, relayed_broker

from penstock.client.cluster import LATEST, Cluster
from penstock.client.errors import Refused
from penstock.client.transaction import add_partitions
from penstock.records.compression import Codec
from penstock.spark.arrow.encode import encode
from penstock.spark.errors import SourceError
from penstock.spark.options.options import WriteOptions, parse_write
from penstock.spark.write import writer
from penstock.spark.write.exactly_once import Loan, Task, TurnTaker, abort, commit, explained, lend
from penstock.spark.write.marks import Mark, MarkBook, MarksLog, open_book
from penstock.spark.write.writer import SharedDoor

DEADLINE_S = 30.0
PARTITIONS = 3
TAKEN_OVER = "another run of this query has begun, or another query has the same"
SHUT_OUT = r"producer fenced|invalid producer epoch"
MARK = Mark("query", 4, 2, 0)


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    with relayed_broker(tmp_path_factory.mktemp("broker")) as made:
        yield made


@pytest.fixture
def run(relay: Relay) -> Iterator["Run"]:
    made = Run(relay)
    yield made
    made.close()
    assert not relay.cuts, "a cut never happened"


class Run:
    """A query of its own: a topic, a transactional id, and what its driver and tasks do."""

    def __init__(self, relay: Relay) -> None:
        self.name = f"orders-{uuid.uuid4().hex[:12]}"
        options = {"kafka.bootstrap.servers": relay.address, "topic": self.name, "kafka.delivery.timeout.ms": "20000"}
        self.options: WriteOptions = parse_write(options, streaming=True)
        self.settings = self.options.settings
        self.cluster = Cluster(self.settings)
        self.cluster.create_topic(self.name, PARTITIONS, {})

    def close(self) -> None:
        self.cluster.close()

    def lend(self) -> Loan:
        return lend(self.settings, self.name, timeout_ms=60_000)

    def write(self, loan: Loan, task: Task, values: Sequence[tuple[int, bytes]]) -> set[str]:
        """As a task: values to partitions, in order; returns its claims."""
        door = SharedDoor(self.options, loan, task)
        with contextlib.closing(door), explained():
            for partition, value in values:
                for section in encode(None, pa.array([value]), None, 0, codec=Codec.NONE, max_bytes=1 << 20):
                    door.put((self.name, partition), section)
            return set(door.finish())

    def commit(self, loan: Loan, claims: set[str], mark: Mark | None = MARK) -> None:
        commit(self.settings, loan, claims, mark, patience_s=20)

    def end_offset(self, partition: int, *, committed: bool) -> int:
        place = (self.name, partition)
        return self.cluster.list_offsets({place: LATEST}, read_committed=committed)[place]

    def wait_until_free(self, partition: int) -> None:
        """Until no transaction holds readers up: an end is answered before they hear of it."""
        deadline = time.monotonic() + DEADLINE_S
        while self.end_offset(partition, committed=True) != self.end_offset(partition, committed=False):
            assert time.monotonic() < deadline, "a transaction stays open"

    def visible(self) -> list[list[bytes]]:
        """What a reader of committed records sees of each partition, as soon as no transaction is open."""
        self.lend()  # aborts what is open, and waits for what is about to end
        consumer = Consumer(
            {
                "bootstrap.servers": self.settings.bootstrap,
                "group.id": "none",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
            }
        )
        found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        left = PARTITIONS
        try:
            consumer.assign([TopicPartition(self.name, partition, 0) for partition in range(PARTITIONS)])
            while left and (message := consumer.poll(DEADLINE_S)):
                if message.error() is None:
                    found[message.partition() or 0].append(message.value() or b"")
                else:
                    left -= 1
        finally:
            consumer.close()
        assert not left
        return found


def test_what_is_committed_is_there_with_its_mark(run: Run) -> None:
    loan = run.lend()
    assert loan.marks == {}
    claims = run.write(loan, Task(0, 0), [(0, b"a"), (1, b"b"), (0, b"c")])
    assert [run.end_offset(partition, committed=True) for partition in (0, 1)] == [0, 0]
    run.commit(loan, claims)
    again = run.lend()
    assert again.marks == {"query": MARK}
    assert (again.transaction.producer_id, again.transaction.epoch) > (
        loan.transaction.producer_id,
        loan.transaction.epoch,
    )
    assert again.position > loan.position
    assert run.visible() == [[b"a", b"c"], [b"b"], []]


def test_a_book_read_from_the_start_says_the_same(run: Run) -> None:
    """Another process of the driver has read nothing yet."""
    loan = run.lend()
    run.commit(loan, run.write(loan, Task(0, 0), [(0, b"a")]))
    assert run.lend().marks["query"] == MARK
    book = MarkBook()
    book.catch_up(MarksLog(run.cluster))
    assert book.marks[run.name] == open_book(run.settings).marks[run.name] == {"query": MARK}


@pytest.mark.parametrize("ended", [True, False])
def test_what_is_not_committed_is_never_there(run: Run, ended: bool) -> None:
    loan = run.lend()
    run.write(loan, Task(0, 0), [(0, b"a")])
    if ended:
        abort(run.settings, loan)
    assert run.visible() == [[], [], []]
    assert run.lend().marks == {}


def test_what_was_committed_stays_so(run: Run) -> None:
    """Spark asks for an abort when a commit did not come back well, though it was one."""
    loan = run.lend()
    run.commit(loan, run.write(loan, Task(0, 0), [(0, b"a")]))
    abort(run.settings, loan)
    assert run.visible() == [[b"a"], [], []]
    assert run.lend().marks["query"] == MARK


def test_batch_after_batch(run: Run) -> None:
    for batch in range(5):
        loan = run.lend()
        assert loan.marks.get("query") == (Mark("query", batch - 1, 1, 0) if batch else None)
        claims = run.write(loan, Task(0, 0), [(batch % 2, b"%d" % batch)])
        run.commit(loan, claims, Mark("query", batch, 1, 0))
    assert run.visible() == [[b"0", b"2", b"4"], [b"1", b"3"], []]


def in_threads(*jobs: Callable[[], Any]) -> list[Any]:
    results: list[Any] = [None] * len(jobs)
    failures: list[BaseException] = []

    def work(number: int, job: Callable[[], Any]) -> None:
        try:
            results[number] = job()
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    threads = [threading.Thread(target=work, args=each) for each in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failures:
        raise failures[0]
    return results


def test_tasks_that_share_partitions_take_turns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes many turns of few records; a number used twice, or left out, would be refused or lost."""
    monkeypatch.setattr(writer, "_HELD_BYTES", 30)
    loan = run.lend()

    def task(number: int) -> set[str]:
        return run.write(loan, Task(number, 0), [(at % PARTITIONS, b"%d-%03d" % (number, at)) for at in range(60)])

    claims = in_threads(*(lambda number=number: task(number) for number in range(4)))
    assert min(map(len, claims)) > 5
    run.commit(loan, set.union(*claims))
    found = run.visible()
    wanted = Counter(b"%d-%03d" % (number, at) for number in range(4) for at in range(60))
    assert Counter(value for each in found for value in each) == wanted
    for values in found:
        for number in range(4):
            own = [value for value in values if value.startswith(b"%d-" % number)]
            assert own == sorted(own)


def test_a_task_that_spark_does_not_count_has_the_batch_given_up(run: Run) -> None:
    loan = run.lend()
    claims = run.write(loan, Task(0, 0), [(0, b"a")])
    run.write(loan, Task(1, 0), [(0, b"b")])
    with pytest.raises(SourceError, match="1 turns were taken by tasks that Spark does not count"):
        run.commit(loan, claims)
    run.wait_until_free(0)
    assert run.visible() == [[], [], []]
    assert run.lend().marks == {}


def test_a_task_that_did_not_say_done_has_the_batch_given_up(run: Run) -> None:
    loan = run.lend()
    claims = run.write(loan, Task(0, 0), [(0, b"a")])
    taker = TurnTaker(run.cluster, loan, Task(1, 0), patience_s=5)
    taker.take({(run.name, 1): 1})
    taker.close()
    with pytest.raises(SourceError, match="the batch was given up"):
        run.commit(loan, claims | set(taker.claims))
    assert run.visible() == [[], [], []]


def test_a_claim_the_log_does_not_have_has_the_batch_given_up(run: Run) -> None:
    loan = run.lend()
    claims = run.write(loan, Task(0, 0), [(0, b"a")])
    with pytest.raises(SourceError, match="the batch was given up"):
        run.commit(loan, claims | {"nobody's"})
    assert run.visible() == [[], [], []]


def test_a_task_that_comes_behind_the_seal_does_not_write(run: Run) -> None:
    loan = run.lend()
    run.commit(loan, run.write(loan, Task(0, 0), [(0, b"a")]))
    with pytest.raises(SourceError, match="task 1 came too late: its batch was committed or given up without it"):
        run.write(loan, Task(1, 0), [(0, b"late")])
    assert run.visible() == [[b"a"], [], []]


@pytest.mark.parametrize("gave_up", ["abort", "commit"])
def test_a_task_does_not_write_on_when_its_batch_was_given_up(run: Run, gave_up: str) -> None:
    """Spark lets tasks go that it does not wait for. What one writes then nobody would end before its time is up."""
    loan = run.lend()
    claims = run.write(loan, Task(0, 0), [(0, b"a")])
    late = TurnTaker(run.cluster, loan, Task(1, 0), patience_s=20)
    late.take({(run.name, 1): 1})
    late.finish()
    if gave_up == "abort":
        abort(run.settings, loan)
    else:
        with pytest.raises(SourceError, match="the batch was given up"):
            run.commit(loan, claims)
    with pytest.raises(SourceError, match=rf"{TAKEN_OVER}|came too late"):
        run.write(loan, Task(1, 0), [(1, b"late")])
    with pytest.raises(Refused, match=SHUT_OUT):
        add_partitions(run.cluster, loan.transaction, [(run.name, 1)])
    late.close()
    run.wait_until_free(1)


def test_a_turn_is_waited_for_no_longer_than_patience_lasts(run: Run) -> None:
    """The one before it died with its turn taken."""
    loan = run.lend()
    dead, alive = (TurnTaker(run.cluster, loan, Task(number, 0), patience_s=0.5) for number in range(2))
    dead.take({(run.name, 0): 1})
    dead.close()
    with pytest.raises(SourceError, match=r"waited 0\.5 s for"):
        alive.take({(run.name, 0): 1})
    alive.close()


@pytest.mark.parametrize("late", ["task", "driver"])
def test_a_newer_run_shuts_out_the_older_one(run: Run, late: str) -> None:
    older = run.lend()
    claims = run.write(older, Task(0, 0), [(0, b"older")])
    newer = run.lend()
    with pytest.raises(SourceError, match=TAKEN_OVER):
        run.commit(older, claims) if late == "driver" else run.write(older, Task(1, 0), [(1, b"older")])
    run.commit(newer, run.write(newer, Task(0, 0), [(0, b"newer")]), Mark("query", 9, 1, 0))
    assert run.visible() == [[b"newer"], [], []]
    assert run.lend().marks["query"] == Mark("query", 9, 1, 0)


@pytest.mark.parametrize("how", ["abort", "commit"])
def test_an_older_run_that_gives_up_leaves_the_newer_alone(run: Run, how: str) -> None:
    older = run.lend()
    claims = run.write(older, Task(0, 0), [(0, b"older")])
    newer = run.lend()
    written = run.write(newer, Task(0, 0), [(0, b"newer")])
    if how == "abort":
        abort(run.settings, older)
    else:
        with pytest.raises(SourceError):
            run.commit(older, claims | {"one it never heard of"})
    run.commit(newer, written)
    assert run.visible() == [[b"newer"], [], []]


def test_a_task_tried_again_after_it_had_claimed_does_not_wait(run: Run) -> None:
    """What the first attempt wrote, or may have, is not to be counted: the batch cannot be committed any more."""
    loan = run.lend()
    dead = TurnTaker(run.cluster, loan, Task(0, 0), patience_s=20)
    dead.take({(run.name, 0): 1})
    dead.close()
    with pytest.raises(SourceError, match="task 0 was tried again after it had written; its batch is written anew"):
        run.write(loan, Task(0, 1), [(0, b"again")])


def test_queries_that_take_turns_under_one_id_have_marks_of_their_own(run: Run) -> None:
    marks = [Mark("one", 7, 1, 0), Mark("two", 3, 1, 0), Mark("one", 8, 1, 0)]
    for mark in marks:
        loan = run.lend()
        run.commit(loan, run.write(loan, Task(0, 0), [(0, mark.query.encode())]), mark)
    assert run.lend().marks == {"one": marks[2], "two": marks[1]}


FAULTS = [
    *((PRODUCE, where, skip) for where in (REQUEST, ANSWER) for skip in range(8)),
    *((api, where, 0) for api in (END_TXN, FETCH) for where in (REQUEST, ANSWER)),
]
"""Two tasks and a driver send: claim, batch, done; claim, batch, done; seal, mark."""


@pytest.mark.parametrize(("api", "where", "skip"), FAULTS)
def test_a_cut_anywhere_neither_doubles_nor_loses(run: Run, relay: Relay, api: int, where: str, skip: int) -> None:
    """Entries whose answer is lost stand in the log twice; batches and marks do not."""
    loan = run.lend()
    relay.cuts.append(Cut(api, where, skip))
    claims = run.write(loan, Task(0, 0), [(0, b"a"), (0, b"b")])
    claims |= run.write(loan, Task(1, 0), [(0, b"c"), (0, b"d")])
    run.commit(loan, claims)
    assert run.visible() == [[b"a", b"b", b"c", b"d"], [], []]
    assert run.lend().marks["query"] == MARK
