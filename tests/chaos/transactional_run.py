"""One exactly-once run: starts the clients, kills them and the broker as a seed says, drains, and reads everything.

Two groups copy the same input, one of the classic protocol and one of the newer, each to a topic of its own; a third
group watches both outputs. Faults come when a share of the copying is done, so a slow machine meets the same ones.
"""

import contextlib
import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil  # type: ignore[import-untyped]
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.chaos.broker_process import DIES_WITH_US, BrokerProcess
from tests.chaos.history import PartitionLog, Record
from tests.chaos.load import DOWN, QUICK, create_topic, wait_until
from tests.chaos.transactional_history import Copy, History, Kind, Place, Violation
from tests.chaos.transactional_load import FATAL, HEARTBEAT_MS, PHASES, SESSION_MS, Recorder, Spec

ROOT = Path(__file__).parents[2]
BROKER_SETTINGS = {
    "groups": {
        "min_session_timeout_ms": SESSION_MS,
        "consumer_session_timeout_ms": SESSION_MS,
        "consumer_heartbeat_interval_ms": HEARTBEAT_MS,
        "initial_rebalance_delay_ms": 0,
    }
}
PARTITIONS = {"in": 4, "classic": 3, "consumer": 3}
"""Not the same numbers, so that a copier's transaction spans partitions."""
_SMALL_SEGMENTS = {"segment.bytes": "131072"}
_STUCK_S = 40.0
_HEIRS_WORK_S = 0.5
_LONGEST_SILENCE_S = 4 * SESSION_MS / 1000
_NEEDS_THE_END = {Kind.LOST, Kind.TORN, Kind.VANISHED, Kind.NOT_COPIED, Kind.UNREAD}
"""What is not there, and may yet be: no violation as long as work is left."""


class Fault(NamedTuple):
    kind: str
    """kill; kill_twice: again on its way up; replace: stopped, and goes on when its successor is at work."""
    victim: str
    """A client's name, or "broker"."""
    after: float
    """Share of the copying that is done by then."""
    delay_s: float


class Silence(NamedTuple):
    """A client that is stopped."""

    since: float
    name: str
    process: subprocess.Popen[bytes]


class Stuck(Exception):
    """No progress any more, or not without a client that cannot go on."""


class Run:
    """Use as a context manager, so that nothing is left running."""

    def __init__(self, broker: BrokerProcess, directory: Path, *, seed: int, records: int, faults: int) -> None:
        self._broker, self._directory, self._seed = broker, directory, seed
        directory.mkdir()
        self._coin = random.Random(seed)
        self._input_records = records // 3  # each is written once and copied twice
        self.topics = {role: f"{role}-{seed}" for role in PARTITIONS}
        self.copies = [
            Copy(f"copy-{role}-{seed}", self.topics["in"], self.topics[role]) for role in PARTITIONS if role != "in"
        ]
        self.watchers = f"watch-{seed}"
        self._specs = {spec.name: spec for spec in self._make_specs()}
        self.faults = list(self._make_faults(faults))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._silent: list[Silence] = []
        self._assigned_at: dict[str, float] = {}
        """When a client was last given partitions; `_committed_at`: when it last committed a transaction."""
        self._committed_at: dict[str, float] = {}
        self._zombies: list[subprocess.Popen[bytes]] = []
        self._recorder = Recorder(directory / "looks.jsonl")
        self._tails: dict[Path, int] = {}
        self.done: Counter[str] = Counter()
        """Records committed or acked, by client."""
        self.incarnations: Counter[str] = Counter()
        self.stuck: list[Violation] = []
        self._lookers: dict[str, Consumer] = {}

    # --- the cast

    def _make_specs(self) -> Iterator[Spec]:
        target = {"target": self.topics["in"], "target_partitions": PARTITIONS["in"]}
        for number, share in enumerate((0.2, 0.4, 0.4)):
            records = round(self._input_records * share)
            yield self._spec("producer", f"p{number}", **target, records=records, transactional=number > 0)
        strategy = self._coin.choice(["range", "cooperative-sticky"])
        for copy, role in zip(self.copies, ("classic", "consumer"), strict=True):
            for number in range(2):
                consumer: dict[str, Any] = {"group.protocol": role}
                if role == "classic":
                    consumer["partition.assignment.strategy"] = strategy
                if role == "classic" and number == 0:
                    # Its successor need not wait for the session's end. The client must not give the session up either
                    # while the broker is away: a late heartbeat would then meet its own new membership, and be fenced.
                    consumer |= {"group.instance.id": f"static-{self._seed}", "session.timeout.ms": 30_000}
                yield self._spec(
                    "copier",
                    f"{role}{number}",
                    topics=(copy.source,),
                    target=copy.target,
                    target_partitions=PARTITIONS[role],
                    group=copy.group,
                    consumer=consumer,
                    halts=tuple(self._make_halts(number)),
                )
        protocol = {"group.protocol": self._coin.choice(["classic", "consumer"])}
        for number in range(2):
            topics = tuple(copy.target for copy in self.copies)
            yield self._spec("watcher", f"watch{number}", topics=topics, group=self.watchers, consumer=protocol)

    def _make_halts(self, number: int) -> Iterator[tuple[int, str, str]]:
        """The second of a group's members falls silent within transactions, and goes on when its partitions are not its
        own any more: with offsets still to be sent, which must be refused, and with offsets that are sent, for which
        the next owner must wait. Then the kills."""
        at = self._coin.randrange(2, 6)
        if number == 1:
            for phase in ("sent", "offsets"):
                yield at, phase, "SIGSTOP"
                at += self._coin.randrange(1, 6)
        yield at + self._coin.randrange(10), self._coin.choice(PHASES), "SIGKILL"

    def _spec(self, role: str, name: str, **more: Any) -> Spec:
        return Spec(role, f"{name}-{self._seed}", 0, self._broker.bootstrap, "", str(self._seed), **more)

    def _make_faults(self, number: int) -> Iterator[Fault]:
        """Every other one is the broker's; the rest are of each sort in turn."""
        sorts = [("kill", "producer"), ("kill", "watcher"), ("kill", "copier"), ("replace", "copier")]
        self._coin.shuffle(sorts)
        for index, after in enumerate(sorted(self._coin.uniform(0.02, 0.9) for _ in range(number))):
            kind, role = sorts[index // 2 % len(sorts)]
            victim = self._coin.choice(
                [name for name, spec in self._specs.items() if spec.role == role and spec.is_prey]
            )
            if index % 2 == 0:
                kind, victim = "kill_twice" if index % 6 == 4 else "kill", "broker"
            yield Fault(kind, victim, after, self._coin.uniform(0, 0.05))

    def __enter__(self) -> Self:
        for role, partitions in PARTITIONS.items():
            create_topic(self._broker.bootstrap, self.topics[role], partitions, _SMALL_SEGMENTS)
        for name in self._specs:
            self._start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self._processes.values(), *self._zombies):
            process.kill()
            process.wait()
        for consumer in self._lookers.values():
            consumer.close()

    def _start(self, name: str) -> None:
        incarnation = self.incarnations[name]
        self.incarnations[name] += 1
        spec = replace(
            self._specs[name],
            incarnation=incarnation,
            history=str(self._directory / f"{name}.{incarnation:03}.jsonl"),
            records=self._specs[name].records - self.done[name],
            halts=self._specs[name].halts if incarnation == 0 else (),
        )
        with (self._directory / f"{name}.err").open("ab") as errors:
            self._processes[name] = subprocess.Popen([*DIES_WITH_US, *spec.command()], stderr=errors, cwd=ROOT)

    # --- watching it go

    def _tend(self) -> None:
        """Take in what the clients have noted, and have a successor for each that was killed."""
        self._read_tails()
        self._wake(self._is_missed_no_more)
        for name, process in list(self._processes.items()):
            code = process.poll()
            if code is None and self._fell_silent(process):
                self._silent.append(Silence(time.monotonic(), name, process))
            if code is None or code == 0:
                continue
            if code not in (-signal.SIGKILL, FATAL):
                errors = (self._directory / f"{name}.err").read_text()
                raise AssertionError(f"{name} ended with {code}: {errors[-4000:]}")
            if code == FATAL:
                raise Stuck(f"{name} cannot go on")
            self._read_tails()
            self._start(name)

    def _fell_silent(self, process: subprocess.Popen[bytes]) -> bool:
        """By its own doing, and nobody has noticed yet."""
        if any(known.process is process for known in self._silent):
            return False
        return bool(psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)

    def _wake(self, is_due: Callable[[Silence], bool]) -> None:
        due = [silence for silence in self._silent if is_due(silence)]
        self._silent = [silence for silence in self._silent if silence not in due]
        for silence in due:
            silence.process.send_signal(signal.SIGCONT)

    def _is_missed_no_more(self, silence: Silence) -> bool:
        """Another one was given its partitions and has worked for a while, or nobody seems to come."""
        group = self._specs[silence.name].group
        heirs = [name for name, spec in self._specs.items() if spec.group == group]
        taken = [at for name in heirs if (at := self._assigned_at.get(name, 0)) > silence.since]
        worked = [self._committed_at.get(name, 0) for name in heirs]
        if taken and max(worked) > min(taken) + _HEIRS_WORK_S:
            return True
        return time.monotonic() > silence.since + _LONGEST_SILENCE_S

    def _read_tails(self) -> None:
        for path in self._directory.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._tails.get(path, 0))
                fresh = file.read()
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self._tails[path] = self._tails.get(path, 0) + len(whole)
            for line in whole.splitlines():
                if line.startswith((b'{"op": "ended"', b'{"op": "step"')) and b'"polled"' not in line:
                    self._take_in(path.name.split(".")[0], json.loads(line))

    def _take_in(self, name: str, line: dict[str, Any]) -> None:
        if line["op"] == "ended" and line["outcome"] == "ok":
            self.done[name] += line["records"]
            self._committed_at[name] = line["at"]
        elif line["op"] == "step" and line["kind"] == "assigned" and line["rows"]:
            self._assigned_at[name] = line["at"]

    def _has_copied(self, number: int) -> bool:
        return sum(self.done[name] for name, spec in self._specs.items() if spec.role == "copier") >= number

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """As long as something is being done; raises Stuck otherwise."""
        progress, since = sum(self.done.values()), time.monotonic()
        while not condition():
            self._tend()
            self._look()
            if sum(self.done.values()) != progress:
                progress, since = sum(self.done.values()), time.monotonic()
            if time.monotonic() - since > _STUCK_S:
                raise Stuck(f"nothing done for {_STUCK_S} s, and not yet: {what}")
            time.sleep(0.05)

    def _look(self) -> dict[tuple[str, Place], int]:
        """What the groups have committed now, as far as no transaction is about to change it."""
        found: dict[tuple[str, Place], int] = {}
        wanted = [(copy.group, copy.source, PARTITIONS["in"]) for copy in self.copies]
        wanted += [(self.watchers, self.topics[role], PARTITIONS[role]) for role in ("classic", "consumer")]
        for group, topic, partitions in wanted:
            began = time.monotonic()
            places = [TopicPartition(topic, index) for index in range(partitions)]
            try:
                offsets = self._looker_of(group).committed(places, timeout=0.5)
            except KafkaException:
                continue  # the broker is away, or a transaction is under way
            rows = [(topic, each.partition, each.offset) for each in offsets if each.error is None and each.offset >= 0]
            self._recorder.note("look", began=began, group=group, rows=rows)
            found.update(((group, (topic, partition)), offset) for topic, partition, offset in rows)
        return found

    def _looker_of(self, group: str) -> Consumer:
        if group not in self._lookers:
            self._lookers[group] = Consumer({"bootstrap.servers": self._broker.bootstrap, "group.id": group, **QUICK})
        return self._lookers[group]

    # --- the story

    def play(self) -> None:
        """The faults, each at its time; then until all is copied and watched. Notes being stuck."""
        try:
            for fault in self.faults:
                goal = int(fault.after * 2 * self._input_records)
                self._wait(partial(self._has_copied, goal), f"{goal} records copied")
                self._strike(fault)
            self._drain()
        except Stuck as problem:
            self.stuck.append(Violation(Kind.STUCK, f"{problem}; done: {dict(self.done)}"))
            self._end()

    def _strike(self, fault: Fault) -> None:
        _pass_time(fault.delay_s)
        if fault.victim == "broker":
            self._broker.kill()
            if fault.kind == "kill_twice":
                self._broker.launch()
                _pass_time(10 * fault.delay_s)
                self._broker.kill()
            self._broker.start()
            return
        process = self._processes[fault.victim]
        if fault.kind == "kill" or not self._has_committed(fault.victim):
            process.kill()
            process.wait()
            return
        process.send_signal(signal.SIGSTOP)
        self._silent.append(Silence(time.monotonic(), fault.victim, process))
        self._zombies.append(process)
        self._recorder.note("succeeded", client=f"{fault.victim}.{self.incarnations[fault.victim] - 1}")
        self._read_tails()
        self._start(fault.victim)

    def _has_committed(self, name: str) -> bool:
        """A client stopped before its transactional id is its own would fence its successor, and rightly so."""
        path = self._directory / f"{name}.{self.incarnations[name] - 1:03}.jsonl"
        return path.exists() and b'"outcome": "ok"' in path.read_bytes()

    def _drain(self) -> None:
        producers = [name for name, spec in self._specs.items() if spec.role == "producer"]
        self._wait(lambda: all(self._processes[name].poll() == 0 for name in producers), "the producers are done")
        goals = {(copy.group, place): end for copy in self.copies for place, end in self._ends("in").items()}
        self._wait(lambda: self._reached(goals), f"the copiers are done: {goals}")
        self._wait(lambda: not self._undecided(), "no transaction is open")
        goals = {
            (self.watchers, place): end
            for copy in PARTITIONS
            if copy != "in"
            for place, end in self._ends(copy).items()
        }
        self._wait(lambda: self._reached(goals), f"the watchers are done: {goals}")
        self._end()

    def _end(self) -> None:
        self._wake(lambda _: True)
        for process in (*self._processes.values(), *self._zombies):
            process.terminate()
        for process in (*self._processes.values(), *self._zombies):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                self.stuck.append(Violation(Kind.STUCK, f"process {process.pid} does not end"))
                process.kill()
                process.wait()

    def _reached(self, goals: dict[tuple[str, Place], int]) -> bool:
        found = self._look()
        return all(found.get(key, -1) >= goal for key, goal in goals.items())

    def _ends(self, role: str) -> dict[Place, int]:
        """Behind the last committed record of each partition that has one."""
        logs = read_committed(self._broker.bootstrap, self.topics[role], PARTITIONS[role])
        return {place: log.records[-1].offset + 1 for place, log in logs.items() if log.records}

    def _undecided(self) -> list[str]:
        """Partitions where a transaction holds readers back."""
        places = [(self.topics[role], index) for role, number in PARTITIONS.items() for index in range(number)]
        stable, ends = (
            end_offsets(self._broker.bootstrap, places, level) for level in ("read_committed", "read_uncommitted")
        )
        return [
            f"{place}: stable to {stable[place]}, ends at {ends[place]}"
            for place in places
            if stable[place] < ends[place]
        ]

    def history(self) -> History:
        return History.load(self._directory.glob("*.jsonl"))

    def verdict(self) -> list[Violation]:
        """All violations; the clients have ended."""
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not self._undecided(), 10, "no transaction is open")
        hanging = [Violation(Kind.HANGING, text) for text in self._undecided()]
        logs: dict[Place, PartitionLog] = {}
        for role, topic in self.topics.items():
            logs |= read_committed(self._broker.bootstrap, topic, PARTITIONS[role])
        watched = {copy.target: self.watchers for copy in self.copies}
        found = self.history().check(logs, self.copies, watched)
        if self.stuck:
            found = [violation for violation in found if violation.kind not in _NEEDS_THE_END]
        return [*self.stuck, *hanging, *found]


def _pass_time(seconds: float) -> None:
    """Not waiting for anything: the moment of the kill is what the seed chooses."""
    time.sleep(seconds)


def read_committed(bootstrap: str, topic: str, partitions: int, timeout: float = 60) -> dict[Place, PartitionLog]:
    """Every committed record of a topic up to its last stable offset."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "chaos-committed",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "fetch.wait.max.ms": 50,
        **QUICK,
    }
    consumer = Consumer(settings)
    records: dict[int, list[Record]] = {index: [] for index in range(partitions)}
    ends: dict[int, int] = {}
    deadline = time.monotonic() + timeout
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        while len(ends) < partitions:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} could not be read to its end, only partitions {sorted(ends)}")
            for message in consumer.consume(5000, 0.1):
                error, index, offset = message.error(), message.partition(), message.offset()
                if error is None:
                    assert index is not None
                    assert offset is not None
                    records[index].append(Record(index, offset, (message.value() or b"").decode()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ends[message.partition() or 0] = offset or 0
                elif error.code() not in DOWN:
                    raise KafkaException(error)
    finally:
        consumer.close()
    return {(topic, index): PartitionLog(0, ends[index], records[index]) for index in range(partitions)}


def end_offsets(bootstrap: str, places: Sequence[Place], isolation: str) -> dict[Place, int]:
    """The last stable offsets for read_committed, else the high watermarks."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends", "isolation.level": isolation, **QUICK})
    try:
        return {place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=20)[1] for place in places}
    finally:
        consumer.close()
