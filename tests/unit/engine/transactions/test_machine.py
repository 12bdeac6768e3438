"""The coordinator of transactions against the scenarios in tests/scenarios/transactions, and its limits.

A scenario is a conversation. Unindented lines are what happens:

    at 1000                           time, with whatever runs out by then
    +500                              so much later
    anna: init tx as 7/0 spare=8      a request; who asks is also who is answered; 7/0 is producer 7 in epoch 0
    anna: add tx 7/0 orders-0         partitions (`verify` only looks)
    anna: commit tx 7/0 v2            or abort; v2 is a client of KIP-890
    markers of tx                     all markers that were due are durable
    crash                             the machine is made again from its records
    given tx 7/32765                  the log begins with an idle id that has come so far

Indented lines are all that comes of it, in order: records, answers, refusals, who has to wait, markers due.
`REWRITE=1` puts what comes of it into the files; read the difference before you believe it.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.engine.coordination.outcome import Outcome
from penstock.engine.coordination.schemas import TRANSACTION_RECORDS, Entry
from penstock.engine.transactions.machine import TransactionMachine
from penstock.engine.transactions.requests import (
    AddPartitions,
    EndRequest,
    InitRequest,
    MarkersDue,
    TransactionLimits,
    TransactionListing,
)
from penstock.engine.transactions.transaction import ProducerIdentity, State, Transaction
from penstock.errors import Code, PenstockError

SCENARIOS = Path(__file__).parents[3] / "scenarios" / "transactions"
INDENT = "    "


class Conversation:
    def __init__(self) -> None:
        self.limits = TransactionLimits()
        self.machine = TransactionMachine(self.limits)
        self.now = 0
        self.log: list[Entry] = []
        self.due: dict[str, MarkersDue] = {}
        self.waiting: dict[Any, None] = {}

    def hear(self, line: str) -> Iterator[str]:
        if spoken := re.fullmatch(r"(\w+): (\w+) (\S+)(.*)", line):
            yield from self._request(*spoken.groups())
        elif moved := re.fullmatch(r"(at |\+)(\d+)", line):
            self.now = int(moved[2]) + (self.now if moved[1] == "+" else 0)
            while (deadline := self.machine.next_deadline()) is not None and deadline <= self.now:
                yield from self._show(self.machine.tick(self.now))
        elif written := re.fullmatch(r"markers of (\S+)", line):
            marker = self.due.pop(written[1])
            outcome = self.machine.markers_written(
                self.now, marker.transactional_id, marker.producer_id, marker.producer_epoch
            )
            yield from self._show(outcome)
        elif limited := re.fullmatch(r"limit (\w+) (\d+)", line):
            self.limits = TransactionLimits(**{limited[1]: int(limited[2])})
            self.machine = TransactionMachine(self.limits)
        elif given := re.fullmatch(r"given (\S+) (\d+)/(\d+)", line):
            self.log.append(Transaction(given[1], int(given[2]), int(given[3]), 60_000, self.now).entry())
            self.machine.replay(self.log[-1], 0, None, self.now)
        elif line == "crash":
            yield from self._crash()
        else:
            raise AssertionError(f"not understood: {line}")

    def _request(self, who: str, verb: str, transactional_id: str, rest: str) -> Iterator[str]:
        options = dict(re.findall(r"(\w+)=(\d+)", rest))
        spare = int(options.get("spare", -1))
        claimed = re.findall(r"(?<!\S)(\d+)/(\d+)", rest)[0] if "/" in rest else (-1, -1)
        producer = (int(claimed[0]), int(claimed[1]))
        partitions = tuple((name, int(index)) for name, index in re.findall(r"(?<!\S)([a-z_]+)-(\d+)", rest))
        self.waiting[who] = None
        try:
            if verb == "init":
                timeout_ms = int(options.get("timeout", 60_000))
                asked = InitRequest(transactional_id, timeout_ms, *producer, new_producer_id=spare)
                outcome = self.machine.init(self.now, who, asked)
            elif verb in ("add", "verify"):
                adding = AddPartitions(transactional_id, *producer, partitions, verb == "verify")
                outcome = self.machine.add_partitions(self.now, who, adding)
            else:
                assert verb in ("commit", "abort"), verb
                ending = EndRequest(
                    transactional_id, *producer, verb == "commit", 2 if " v2" in rest else 0, new_producer_id=spare
                )
                outcome = self.machine.end(self.now, who, ending)
        except PenstockError as error:
            del self.waiting[who]
            yield f"{who} is refused: {error.code.name}"
            return
        yield from self._show(outcome)
        if who in self.waiting:
            yield f"{who} waits"

    def _show(self, outcome: Outcome) -> Iterator[str]:
        for entry in outcome.records:
            yield f"record: {_shown(entry)}"
            self.log.append(_kept(entry))
        for reply in outcome.replies:
            del self.waiting[reply.to]
            yield f"{reply.to} gets {_answer(reply.answer)}"
        yield from self._markers()

    def _markers(self) -> Iterator[str]:
        for due in self.machine.markers_due():
            self.due[due.transactional_id] = due
            where = " ".join(f"{topic}-{index}" for topic, indexes in due.partitions for index in indexes)
            what = "commit" if due.committed else "abort"
            yield f"markers due: {due.transactional_id} {what} {due.producer_id}/{due.producer_epoch} {where}"

    def _crash(self) -> Iterator[str]:
        before = list(self.machine.dump())
        self.machine = TransactionMachine(self.limits)
        for offset, entry in enumerate(self.log):
            self.machine.replay(entry, offset, None, self.now)
        assert list(self.machine.dump()) == before
        self.due.clear()
        for who in self.waiting:
            yield f"{who} gets nothing"
        self.waiting.clear()
        yield from self._markers()


def _kept(entry: Entry) -> Entry:
    kept = TRANSACTION_RECORDS.decode(*TRANSACTION_RECORDS.encode(entry))
    assert kept == entry
    return entry


def _shown(entry: Entry) -> str:
    transactional_id = entry.key[0]
    if entry.value is None:
        return f"{transactional_id} forgotten"
    transaction = Transaction.from_entry(entry)
    words = [transactional_id, transaction.state.shown, f"{transaction.producer_id}/{transaction.producer_epoch}"]
    if transaction.next_producer_id >= 0:
        words.append(f"then {transaction.next_producer_id}/0")
    if transaction.predecessor is not None:
        words.append("was {}/{}".format(*transaction.predecessor))
    if transaction.state is State.ONGOING:
        words.append(f"since {transaction.started_ms}")
    words += [f"{topic}-{index}" for topic, index in sorted(transaction.partitions)]
    return " ".join(words)


def _answer(answer: Any) -> str:
    if isinstance(answer, PenstockError):
        return answer.code.name
    if isinstance(answer, ProducerIdentity):
        return f"{answer.producer_id}/{answer.producer_epoch}"
    return " ".join(f"{topic}-{index} {error.code.name if error else 'ok'}" for (topic, index), error in answer.items())


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    conversation = Conversation()
    told = path.read_text().splitlines()
    came: list[str] = []
    for line in told:
        if line.startswith(INDENT):
            continue
        came.append(line)
        if line and not line.startswith("#"):
            came += [INDENT + shown for shown in conversation.hear(line)]
    if os.environ.get("REWRITE"):
        path.write_text("\n".join(came) + "\n")
    assert came == told


def test_there_are_scenarios() -> None:
    assert len(list(SCENARIOS.glob("*.txt"))) >= 8


@pytest.fixture
def machine() -> TransactionMachine:
    return TransactionMachine()


def _begin(machine: TransactionMachine, transactional_id: str, now: int = 0, producer_id: int = 7) -> None:
    machine.init(now, "", InitRequest(transactional_id, 60_000, new_producer_id=producer_id))
    machine.add_partitions(now, "", AddPartitions(transactional_id, producer_id, 0, (("t", 0),)))


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeouts_a_client_may_not_ask_for(machine: TransactionMachine, timeout_ms: int) -> None:
    with pytest.raises(PenstockError, match=f"'tx' asks for a time-out of {timeout_ms} ms") as refused:
        machine.init(0, "", InitRequest("tx", timeout_ms, new_producer_id=7))
    assert refused.value.code is Code.INVALID_TRANSACTION_TIMEOUT
    assert len(machine) == 0


@pytest.mark.parametrize("transactional_id", ["", "x" * 1025, "ü" * 513])
def test_transactional_ids_are_bounded(machine: TransactionMachine, transactional_id: str) -> None:
    with pytest.raises(PenstockError) as refused:
        machine.init(0, "", InitRequest(transactional_id, 1000, new_producer_id=7))
    assert refused.value.code is Code.INVALID_REQUEST


@pytest.mark.parametrize("claimed", [(7, -1), (-1, 0)])
def test_a_producer_id_without_an_epoch_is_no_identity(machine: TransactionMachine, claimed: tuple[int, int]) -> None:
    with pytest.raises(PenstockError) as refused:
        machine.init(0, "", InitRequest("tx", 1000, *claimed, new_producer_id=7))
    assert refused.value.code is Code.INVALID_REQUEST


def test_no_more_ids_than_a_shard_keeps() -> None:
    machine = TransactionMachine(TransactionLimits(transactional_ids=1))
    machine.init(0, "", InitRequest("one", 1000, new_producer_id=7))
    with pytest.raises(PenstockError, match="'two' would be one more than the 1 a shard keeps") as refused:
        machine.init(0, "", InitRequest("two", 1000, new_producer_id=8))
    assert refused.value.code is Code.LIMIT_EXCEEDED
    machine.init(0, "", InitRequest("one", 1000))


@pytest.mark.parametrize(
    ("after_ms", "code"),
    [
        (999, Code.CONCURRENT_TRANSACTIONS),
        (-999, Code.CONCURRENT_TRANSACTIONS),
        (1_000, Code.INVALID_TRANSACTION_STATE),
        (-130_000, Code.INVALID_TRANSACTION_STATE),
    ],
    ids=["in time", "another broker's clock is ahead", "late", "the clock was set back"],
)
def test_a_commit_of_nothing_is_told_to_try_again_for_a_second(
    machine: TransactionMachine, after_ms: int, code: Code
) -> None:
    _begin(machine, "tx")
    ended_ms = 500_000
    machine.end(ended_ms, "", EndRequest("tx", 7, 0, True, 2))
    (due,) = machine.markers_due()
    machine.markers_written(ended_ms, "tx", due.producer_id, due.producer_epoch)
    with pytest.raises(PenstockError) as refused:
        machine.end(ended_ms + after_ms, "", EndRequest("tx", 7, 1, True, 2))
    assert refused.value.code is code


def test_a_line_has_an_end(machine: TransactionMachine) -> None:
    _begin(machine, "tx")
    for number in range(64):
        machine.init(0, number, InitRequest("tx", 60_000))
    with pytest.raises(PenstockError, match="64 wait for it") as refused:
        machine.init(0, "one more", InitRequest("tx", 60_000))
    assert refused.value.code is Code.CONCURRENT_TRANSACTIONS
    (due,) = machine.markers_due()
    outcome = machine.markers_written(1, "tx", due.producer_id, due.producer_epoch)
    assert [reply.to for reply in outcome.replies] == list(range(64))
    assert outcome.replies[-1].answer == ProducerIdentity(7, 65)


def test_many_time_outs_take_many_ticks(machine: TransactionMachine) -> None:
    for number in range(600):
        _begin(machine, f"tx-{number}", producer_id=number)
    sizes = []
    while (deadline := machine.next_deadline()) is not None and deadline <= 60_000:
        sizes.append(len(machine.tick(60_000).records))
    assert sizes == [256, 256, 88]
    assert len(machine.markers_due()) == 600


def test_a_clock_set_back_does_not_keep_a_transaction_open(machine: TransactionMachine) -> None:
    _begin(machine, "tx", now=1_000_000)
    later = TransactionMachine()
    for entry, _ in machine.dump():
        later.replay(entry, -1, None, 5_000)
    assert later.next_deadline() == 65_000


def test_markers_reported_twice_count_once(machine: TransactionMachine) -> None:
    _begin(machine, "tx")
    machine.end(0, "", EndRequest("tx", 7, 0, True))
    assert len(machine.markers_written(0, "tx", 7, 0).records) == 1
    assert machine.markers_written(0, "tx", 7, 0) == Outcome()
    assert machine.markers_written(0, "other", 7, 0) == Outcome()


def test_markers_of_another_epoch_do_not_count(machine: TransactionMachine) -> None:
    _begin(machine, "tx")
    machine.end(0, "", EndRequest("tx", 7, 0, True, client_transaction_version=2))
    assert machine.markers_written(0, "tx", 7, 0) == Outcome()
    assert machine.markers_written(0, "tx", 8, 1) == Outcome()
    assert len(machine.markers_written(0, "tx", 7, 1).records) == 1


def test_batches_belong_to_the_transaction_under_way(machine: TransactionMachine) -> None:
    def refusal(producer_id: int, epoch: int, topic: str, transactional_id: str = "tx") -> Code | None:
        try:
            machine.check_open(transactional_id, producer_id, epoch, (topic, 0))
        except PenstockError as error:
            return error.code
        return None

    _begin(machine, "tx")
    assert refusal(7, 0, "t") is None
    assert refusal(7, 0, "u") is Code.TRANSACTION_ABORTABLE
    assert refusal(7, 1, "t") is Code.PRODUCER_FENCED
    assert refusal(8, 0, "t") is Code.INVALID_PRODUCER_ID_MAPPING
    assert refusal(7, 0, "t", "other") is Code.INVALID_PRODUCER_ID_MAPPING
    machine.end(0, "", EndRequest("tx", 7, 0, True))
    assert refusal(7, 0, "t") is Code.CONCURRENT_TRANSACTIONS
    machine.markers_written(0, "tx", 7, 0)
    assert refusal(7, 0, "t") is Code.TRANSACTION_ABORTABLE


def test_a_new_producer_id_is_asked_for_when_it_may_be_needed(machine: TransactionMachine) -> None:
    assert machine.needs_producer_id("tx")
    with pytest.raises(PenstockError) as refused:
        machine.init(0, "", InitRequest("tx", 1000))
    assert refused.value.code is Code.CONCURRENT_TRANSACTIONS
    machine.init(0, "", InitRequest("tx", 1000, new_producer_id=7))
    assert not machine.needs_producer_id("tx")
    machine.replay(Transaction("tx", 7, 32_758, 1000, 0).entry(), 0, None, 0)
    assert machine.needs_producer_id("tx")


def test_only_a_producer_without_a_transaction_yet_has_no_list_of_partitions(machine: TransactionMachine) -> None:
    (first,) = machine.init(0, "", InitRequest("tx", 1000, new_producer_id=7)).records
    assert first.value.transaction_partitions is None
    machine.add_partitions(0, "", AddPartitions("tx", 7, 0, (("t", 0),)))
    machine.end(0, "", EndRequest("tx", 7, 0, True))
    (last,) = machine.markers_written(0, "tx", 7, 0).records
    assert last.value.transaction_partitions == ()


def test_a_dump_is_what_was_there_when_it_was_asked_for(machine: TransactionMachine) -> None:
    for name in ("one", "two"):
        machine.init(0, "", InitRequest(name, 1000, new_producer_id=7))
    wanted = list(machine.dump())
    dump = machine.dump()
    taken = [next(dump)]
    machine.add_partitions(0, "", AddPartitions("two", 7, 0, (("t", 0),)))
    machine.init(0, "", InitRequest("three", 1000, new_producer_id=8))
    assert [*taken, *dump] == wanted


def test_a_record_of_no_known_state_is_damage(machine: TransactionMachine) -> None:
    entry = Transaction("tx", 7, 0, 1000, 0).entry()
    with pytest.raises(PenstockError, match="'tx'") as refused:
        machine.replay(entry._replace(value=entry.value._replace(transaction_status=8)), 0, None, 0)
    assert refused.value.code is Code.CORRUPT_LOG


def test_describe(machine: TransactionMachine) -> None:
    with pytest.raises(PenstockError, match="'tx'") as refused:
        machine.describe("tx")
    assert refused.value.code is Code.TRANSACTIONAL_ID_NOT_FOUND
    machine.init(3, "", InitRequest("tx", 60_000, new_producer_id=7))
    assert machine.describe("tx") == ("tx", "Empty", 60_000, -1, 7, 0, ())
    machine.add_partitions(5, "", AddPartitions("tx", 7, 0, (("b", 1), ("a", 2), ("a", 0))))
    assert machine.describe("tx") == ("tx", "Ongoing", 60_000, 5, 7, 0, (("a", (0, 2)), ("b", (1,))))


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, ["old", "other", "young"]),
        ({"states": {"Ongoing"}}, ["old", "young"]),
        ({"states": {"Nonsense"}}, []),
        ({"producer_ids": {1, 3}}, ["old", "young"]),
        ({"states": {"Ongoing"}, "duration_ms": 900}, ["old"]),
        ({"states": {"Ongoing"}, "duration_ms": 1000}, []),
        ({"pattern": "o.*"}, ["old", "other"]),
        ({"pattern": "o"}, []),
        ({"pattern": ""}, ["old", "other", "young"]),
    ],
)
def test_list(machine: TransactionMachine, filters: dict[str, Any], found: list[str]) -> None:
    _begin(machine, "old", now=0, producer_id=1)
    machine.init(0, "", InitRequest("other", 1000, new_producer_id=2))
    _begin(machine, "young", now=500, producer_id=3)
    assert [listing.transactional_id for listing in machine.list(1000, **filters)] == found
    assert TransactionListing("other", 2, "Empty") in machine.list(1000)


@pytest.mark.parametrize("pattern", ["(", "(?=a)", "a{1000}{1000}"])
def test_patterns_re2_does_not_take(machine: TransactionMachine, pattern: str) -> None:
    with pytest.raises(PenstockError) as refused:
        machine.list(0, pattern=pattern)
    assert refused.value.code is Code.INVALID_REGEX
