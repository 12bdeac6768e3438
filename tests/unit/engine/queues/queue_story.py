"""A queue as stories tell of it: lines of `tests/scenarios/queue`, and what comes of each."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast
from uuid import UUID

from tests.message_log import MessageLog
from tests.unit.engine.queues.story_headers import headers_of, look_at
from tests.unit.engine.queues.story_words import Words, at, format_run, format_value

from penstock.engine.coordination.outcome import Outcome
from penstock.engine.coordination.schemas import Entry
from penstock.engine.queues import entries
from penstock.engine.queues.answers import Want
from penstock.engine.queues.capacity import Capacity
from penstock.engine.queues.entries import LedgerCodec
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.receiving import Receiving
from penstock.engine.queues.settings import QUEUE_RULES, QueueRules, parse_rules
from penstock.engine.queues.sorting.marks import LANE_NAMES
from penstock.engine.queues.tally import Tally
from penstock.engine.queues.verdicts import Ack, Change, Holder, Receipt, Verdict, VerdictKind
from penstock.engine.queues.window import DELAYED, DYING, LEASED, READY, SETTLED, SHAKEN, Counted, Run
from penstock.errors import PenstockError
from penstock.observe.stats import Stats
from penstock.quantities import parse_duration_ms, parse_size

CHANCE = 0.5
CODEC = LedgerCodec()
VERDICTS = {
    "ack": VerdictKind.ACK,
    "nack": VerdictKind.NACK,
    "release": VerdictKind.RELEASE,
    "reject": VerdictKind.REJECT,
    "extend": VerdictKind.RENEW,
}
STATES = {READY: "ready", SHAKEN: "ready", LEASED: "leased", DELAYED: "delayed", DYING: "dying", SETTLED: "settled"}
TO = "asked"


class Ended(NamedTuple):
    """A marker in the log."""

    producer_id: int
    committed: bool


class Queues:
    """What `Receiving` asks, and the rulebook of `Capacity`."""

    def __init__(self, story: "Story") -> None:
        self._story = story
        self.tally = Tally(Stats())

    def rules(self, topic: str, group: str) -> QueueRules:
        return self._story.rules[group]

    def limited(self, topic: str) -> dict[str, QueueRules]:
        rules = self._story.rules
        return {name: each for name, each in rules.items() if each.max_messages or each.max_bytes}

    async def lease(self, partition: MessageLog, want: Want) -> Any:
        leased, outcome = self._story.machine.lease(self._story.now, want, partition.end_offset)
        self._story.keep(outcome)
        return leased

    def settle_soon(self, partition: MessageLog, group: str, by: Receipt, changes: Sequence[Change]) -> None:
        self._story.keep(self._story.machine.settle(self._story.now, TO, group, by, changes))

    def skip_soon(self, partition: MessageLog, group: str, lease_id: int, behind: int, before: int) -> None:
        self._story.keep(self._story.machine.skip(group, lease_id, behind, before))


class Story:
    def __init__(self) -> None:
        self.now = 0
        self.epoch = 0
        self.messages = MessageLog("jobs")
        self.rules: dict[str, QueueRules] = {}
        self.ids = 0
        self.log: list[Entry | Ended] = []
        self.told: list[str] = []
        self.receipts: dict[tuple[str, str], dict[int, int]] = {}
        """Of each consumer and queue: the lease it had a message in last."""
        self.given = 0
        """The last message that anybody was given."""
        self.saving: Iterator[list[Entry]] | None = None
        self.saving_from = 0
        self.machine = self.make_machine()
        self.keep(self.machine.led(0, 0, 0))

    def make_machine(self, kept: Sequence[Entry | Ended] = ()) -> LedgerMachine:
        machine = LedgerMachine(
            self.rules.__getitem__, lambda: (), self.new_id, lambda: CHANCE, made=lambda: self.rules.keys()
        )
        for each in kept:
            if isinstance(each, Ended):
                machine.marker(each.producer_id, committed=each.committed)
            else:
                machine.replay(each, -1, None, self.now)
        return machine

    def new_id(self) -> int:
        self.ids += 1
        return self.ids

    def tell(self, line: str) -> list[str]:
        """What comes of a line."""
        self.told = []
        consumer, colon, rest = line.partition(": ")
        verb, *words = (rest if colon else line).split()
        try:
            if verb.startswith("+"):
                self.advance(parse_duration_ms(verb[1:]))
            elif colon:
                getattr(self, f"they_{verb}")(consumer, Words.of(words), verb)
            else:
                getattr(self, f"do_{verb}")(Words.of(words))
        except PenstockError as error:
            self.told.append(f"refused: {error.code.name}")
        self.check()
        return self.told

    def check(self) -> None:
        """What is kept, and the state as it would be saved now, each tell the whole story."""
        now = self.shown(self.machine)
        assert self.shown(self.make_machine(self.log)) == now, "the entries do not tell the whole story"
        saved = [entry for entry, _ in self.machine.dump()]
        assert self.shown(self.make_machine(saved)) == now, "the saved state does not tell the whole story"

    def shown(self, machine: LedgerMachine) -> set[Any]:
        assert not machine.tick(self.now).records, "something is overdue"
        found = set()
        for entry, _ in machine.dump():
            key, value = CODEC.encode(entry)
            assert CODEC.decode(key, value) == entry
            if hasattr(entry.value, "runs"):
                entry = entry._replace(value=entry.value._replace(runs=tuple(sorted(entry.value.runs))))
            found.add(entry if not isinstance(entry.value, entries.Led) else entry.value.epoch)
        return found

    def keep(self, outcome: Outcome) -> None:
        """Also tells what is answered: that it was refused, or a number."""
        for each in outcome.records:
            self.log.append(each)
            self.told.append(f"kept: {self.format(each)}")
        for reply in outcome.replies:
            if isinstance(reply.answer, PenstockError):
                raise reply.answer
            if reply.answer is not None:
                self.told.append(f"answer: {reply.answer}")

    def format(self, entry: Entry) -> str:
        (number,), value = entry.key, cast(entries.Value, entry.value)
        others = [group.name for group in self.machine.groups if group.number == number > 1]
        where = f" in {others[0]}" if others else ""
        return format_value(value) + where

    def queue_of(self, words: Words) -> str:
        return words.options.get("in") or next(iter(self.rules))

    # --- the queue and its messages

    def do_queue(self, words: Words) -> None:
        (name,) = words.plain
        self.rules[name] = parse_rules(words.options, QUEUE_RULES._replace(visibility_ms=30_000))
        if self.machine.get(name) is None:
            self.keep(self.machine.open(self.now, TO, name, self.messages.log_start))
        self.machine.sorting.marks = None
        self.look()

    def do_send(self, words: Words) -> None:
        count, size = words.number(1), parse_size(words.options.get("size", "40B"))  # and an empty message has these
        capacity = Capacity(
            self.messages,  # type: ignore[arg-type]
            lambda: self.machine,
            Queues(self),  # type: ignore[arg-type]
            lambda name: None,
            lambda name, excess: self.keep(self.machine.overflow(self.now, name, excess, self.messages.end_offset)),
        )
        capacity.check(count, count * size)
        headers, value, key = headers_of(words), bytes(max(size - 40, 0)), words.options.get("key")
        offsets = [
            self.messages.append(self.now, headers, value, None if key is None else key.encode()) for _ in range(count)
        ]
        self.look()
        self.told.append(f"sent {format_run(Run(offsets[0], offsets[-1]))}")

    def do_gap(self, words: Words) -> None:
        """Offsets without a message: markers, or what was aborted."""
        self.messages.end_offset += words.number(1)
        self.look()

    def do_look(self, words: Words) -> None:
        """So many more messages are looked at, or all."""
        self.look(words.number(self.messages.end_offset))

    def look(self, most: int = 1 << 30) -> None:
        machine = self.machine
        marks = machine.sorting.marks
        if marks is None:
            marks = machine.look_from(min((group.window.start for group in machine.groups), default=0))
        by_key = any(rules.is_fifo for rules in self.rules.values())
        looked = look_at(self.messages, marks.end, most, self.now, by_key=by_key)
        machine.looked(self.now, looked.last, looked.said, looked.published_ms)

    def do_purge(self, words: Words) -> None:
        before = words.number(self.messages.end_offset)
        self.keep(self.machine.purge(self.now, TO, self.queue_of(words), before))

    def do_anew(self, words: Words) -> None:
        self.keep(self.machine.restart(self.now, TO, self.queue_of(words), words.number(0)))

    def do_delete(self, words: Words) -> None:
        self.keep(self.machine.delete(self.now, TO, self.queue_of(words)))

    def do_trim(self, words: Words) -> None:
        self.messages.log_start = words.number(0)
        self.keep(self.machine.trim(words.number(0)))

    def do_redrive(self, words: Words) -> None:
        end = self.messages.end_offset
        to = words.options["to"]
        self.keep(self.machine.redrive(self.now, TO, self.queue_of(words), to, words.runs(), end))

    def do_show(self, words: Words) -> None:
        """Each message that is not settled, and where the queue begins."""
        name = self.queue_of(words)
        group = self.machine.get(name)
        assert group is not None
        alike: list[tuple[Run, str]] = []
        for offset in range(group.window.start, self.messages.end_offset):
            told = self.state_of(name, offset)
            if alike and alike[-1][1] == told:
                alike[-1] = Run(alike[-1][0].first, offset), told
            else:
                alike.append((Run(offset, offset), told))
        self.told += [f"{format_run(run)} {told}" for run, told in alike]
        if not alike:
            self.told.append(f"all is settled below {group.window.start}")

    def state_of(self, name: str, offset: int) -> str:
        state, deliveries, attempts, consumer, deadline, is_pending = self.machine.whereabouts(name, offset)
        held = f" by {consumer} until {at(deadline)}" if consumer is not None else ""
        held += ", in a transaction" if is_pending else ""
        counts = f", delivered {deliveries} failed {attempts}" if deliveries and state != SETTLED else ""
        return f"{STATES[state]}{held}{counts}"

    # --- consumers

    def they_lease(self, consumer: str, words: Words, verb: str) -> None:
        name = self.queue_of(words)
        want = self.want(name, consumer, words)
        leased, outcome = self.machine.lease(self.now, want, self.messages.end_offset)
        if not leased.ranges:
            self.told.append("nothing is ready")
        for counted in leased.ranges:
            self.deliver(consumer, name, counted, leased.lease_id, leased.deadline)
        self.keep(outcome)

    @staticmethod
    def want(name: str, consumer: str, words: Words) -> Want:
        lane = LANE_NAMES.index(words.options["lane"]) if "lane" in words.options else None
        return Want(name, consumer, words.number(1), words.ms("for"), "bound" in words.plain, lane)

    def deliver(self, consumer: str, name: str, counted: Counted, lease_id: int, deadline: int) -> None:
        first, last, deliveries, attempts = counted
        self.given = last
        self.receipts.setdefault((consumer, name), {}).update(dict.fromkeys(range(first, last + 1), lease_id))
        counts = f"delivered {deliveries} failed {attempts}"
        self.told.append(f"{consumer} has {format_run(Run(first, last))} until {at(deadline)}, {counts}")

    def they_receive(self, consumer: str, words: Words, verb: str) -> None:
        """What is leased is read, and what is over is taken out."""
        name = self.queue_of(words)
        receiving = Receiving(Queues(self), self)  # type: ignore[arg-type]
        want = self.want(name, consumer, words)
        max_bytes = parse_size(words.options.get("bytes", "1MiB"))
        found = asyncio.run(receiving.receive(self.messages, want, max_bytes, 0))  # type: ignore[arg-type]
        if not found:
            self.told.append("nothing is ready")
        for message, lease_id, deadline, deliveries, attempts in found:
            self.deliver(
                consumer, name, Counted(message.offset, message.offset, deliveries, attempts), lease_id, deadline
            )

    def monotonic(self) -> float:
        return self.now_ms() / 1000

    def now_ms(self) -> int:
        return self.now

    def they_settle(self, consumer: str, words: Words, verb: str) -> None:
        """With the receipts it has; `by-name` as Kafka's share consumers do."""
        name = self.queue_of(words)
        delay_ms = words.ms("delay" if verb != "extend" else "for")
        verdict = Verdict(VERDICTS[verb], delay_ms, words.options.get("reason", ""))
        is_by_name = "by-name" in words.plain
        runs = Words([word for word in words.plain if word != "by-name"], {}).runs()
        if is_by_name:
            by: Any = Holder(consumer)
        else:
            by = Receipt(self.receipts[consumer, name].get(runs[0].first, 0))
        before = len(self.told)
        if "producer" in words.options:
            acks = [Ack(*run, self.receipts[consumer, name].get(run.first, 0)) for run in runs]
            self.keep(self.machine.settle_in(self.now, TO, name, int(words.options["producer"]), acks))
            self.told += ["done already"] * (len(self.told) == before)
            return
        changes = [Change(run.first, run.last, verdict) for run in runs]
        self.keep(self.machine.settle(self.now, TO, name, by, changes))
        if len(self.told) == before:
            self.told.append("done already")

    they_ack = they_nack = they_release = they_reject = they_extend = they_settle

    def they_leave(self, consumer: str, words: Words, verb: str) -> None:
        self.keep(self.machine.leave(self.now, TO, self.queue_of(words), consumer, graceful=True))

    def they_vanish(self, consumer: str, words: Words, verb: str) -> None:
        self.keep(self.machine.leave(self.now, TO, self.queue_of(words), consumer, graceful=False))

    def they_play(self, consumer: str, words: Words, verb: str) -> None:
        """Lease one message and release it, so often; nothing of it is told but the last time."""
        for _ in range(words.number(1)):
            self.told = []
            self.they_lease(consumer, Words([], words.options), "lease")
            self.they_settle(consumer, Words([str(self.given)], words.options), "release")

    # --- transactions

    def do_commit(self, words: Words) -> None:
        self.end(words.number(0), committed=True)

    def do_abort(self, words: Words) -> None:
        self.end(words.number(0), committed=False)

    def end(self, producer_id: int, *, committed: bool) -> None:
        """The marker comes into the ledger's log."""
        self.log.append(Ended(producer_id, committed))
        self.machine.marker(producer_id, committed=committed)
        self.tick()

    # --- dead letters

    def do_bury(self, words: Words) -> None:
        """Note what is written next, at most so many; or what was noted before."""
        name = self.queue_of(words)
        ((_, begun, runs),) = [each for each in self.machine.dying(words.number(10)) if each.group == name]
        if begun is not None:
            self.told.append(f"again {format_value(begun)}")
            return
        self.keep(self.machine.bury(self.now, TO, name, entries.Burying(UUID(int=9), 0, 7, 0, tuple(runs))))

    def do_buried(self, words: Words) -> None:
        """It is written."""
        name = self.queue_of(words)
        group = self.machine.get(name)
        assert group is not None
        assert group.burial is not None
        self.keep(self.machine.buried(self.now, TO, name, group.burial))

    def do_forget(self, words: Words) -> None:
        """It was not written, and cannot be."""
        self.keep(self.machine.forget_burial(self.now, TO, self.queue_of(words)))

    def do_dead(self, words: Words) -> None:
        for run in words.runs():
            found = self.machine.dead(self.queue_of(words), run.first)
            if found is None:
                self.told.append(f"{run.first} is not dying")
                continue
            why = f"{found.cause.name.lower()}{f' ({found.reason})' if found.reason else ''}"
            self.told.append(f"{run.first} dies by {why}, delivered {found.deliveries} failed {found.attempts}")

    # --- time and place

    def advance(self, duration_ms: int) -> None:
        end = self.now + duration_ms
        while (due := self.machine.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.tick()
        self.now = end

    def tick(self) -> None:
        """What was delayed until now can be had: no entry says so."""
        waited = {
            (group.name, offset)
            for group in self.machine.groups
            for run in group.window.runs_in(group.window.start, group.window.next, DELAYED)
            for offset in range(run.first, run.last + 1)
        }
        before = len(self.told)
        self.machine.stirred.clear()
        self.keep(self.machine.tick(self.now))
        ripe = [each for each in sorted(waited) if self.machine.whereabouts(*each).state == READY]
        self.told += [f"{offset} is ready" for _, offset in ripe]
        if len(self.told) == before:
            self.told += [f"something is due in {name}" for name in sorted(self.machine.stirred)]
        if len(self.told) > before:
            self.told.insert(before, f"at {at(self.now)}")

    def do_restart(self, words: Words) -> None:
        """The broker comes back, in the same epoch, with all that was kept."""
        self.begin_again(self.epoch, 0)

    def do_failover(self, words: Words) -> None:
        """Another broker leads: so many entries were lost, and it has messages up to `end`."""
        lost = int(words.options.get("lost", "0"))
        del self.log[len(self.log) - lost :]
        self.now -= words.ms("behind") or 0
        end = int(words.options.get("end", self.messages.end_offset))
        self.messages.cut(end)
        self.epoch += 1
        self.begin_again(self.epoch, end, looks="blind" not in words.plain)

    def begin_again(self, epoch: int, end: int, *, looks: bool = True) -> None:
        self.saving = None
        self.machine = self.make_machine(self.log)
        self.keep(self.machine.led(self.now, epoch, end))
        self.look(1 << 30 if looks else 0)
        self.tick()

    def do_save(self, words: Words) -> None:
        """Write the state into the log again, or the next pieces of it; then the log begins there."""
        if self.saving is None:
            self.saving, self.saving_from = self.machine.saved(), len(self.log)
        for _ in range(words.number(1000)):
            piece = next(self.saving, None)
            if piece is None:
                self.saving = None
                self.told.append(f"the {self.saving_from} entries before go")
                del self.log[: self.saving_from]
                return
            self.log += piece
            self.told.append("saved: " + ", ".join(self.format(each) for each in piece))
