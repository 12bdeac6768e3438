"""One partition of an internal topic and the state machine that lives in it.

The machine is made of the snapshot and the log behind it. Each step changes it at once and returns an outcome. The
records of all steps of one turn of the event loop are appended as one batch at its end, and the replies go out when the
log is durable up to there. A reply of a step that wrote nothing waits for what was written before it, so nobody is ever
told what a crash could undo. If an append fails, the machine is ahead of its log: everybody who waits is sent away, and
it is made again.

The log has the records in the order of the steps. So whatever else comes into it (a batch that is part of a
transaction, a transaction's marker), and whoever takes the log's end for how far the machine is (a snapshot), ends the
turn first.

A shard may be attached to a partition (`attached_shards.py`): then its machine says which records of that one it needs.

In a cluster the machine lives where its partition is led. It is made when everything in the log is committed, so that
it never tells what another leader could take back, and thrown away when another broker leads.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from struct import error as StructError  # noqa: N812
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from penstock.engine.coordination.outcome import Outcome, Reply, Token
from penstock.engine.coordination.registry import Codec
from penstock.engine.coordination.schemas import Entry
from penstock.engine.coordination.snapshot import SavedRecord, encode_record, load_snapshot, save_snapshot
from penstock.engine.coordination.turn import Kept, Turn
from penstock.engine.partition import Partition
from penstock.engine.safety import until_settled
from penstock.engine.steady_clock import SteadyClock
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.ports.disk import Disk, is_shortage
from penstock.records.batch import decode_header
from penstock.records.build import build_batch
from penstock.records.control import Marker, decode_marker
from penstock.records.record import iterate_batch
from penstock.storage.checked_file import DamagedFile
from penstock.storage.log.commit import Committer
from penstock.storage.log.log import Log
from penstock.storage.log.needs import Needed
from penstock.storage.log.reading import read_batches
from penstock.tasks import Tasks
from penstock.turns import Turns

log_ = get_logger("coordinator")
SNAPSHOT_EVERY = 10_000
"""Records replayed by a restart, at most some more than this or than the state has."""
_READ_BYTES = 1 << 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0
_LARGEST_OPENED = 64 << 20
_ENCODED_AT_ONCE = 200  # a millisecond
_LONGEST_WAIT_S = 5.0
_MOST_GATHERED_BYTES = 1 << 20
"""Of one turn: what a follower or a restart reads at once."""


class Machine(Protocol):
    """What a shard runs; see `outcome.py` for what a step returns."""

    def replay(self, entry: Entry, log_offset: int, producer_id: int | None, now: int) -> None:
        """Take in a record; `producer_id` says whose transaction it is part of. From a snapshot, the offset is -1."""
        ...

    def marker(self, producer_id: int, *, committed: bool) -> None:
        """Take in the end of a transaction."""
        ...

    def dump(self) -> Iterable[tuple[Entry, int | None]]:
        """The state as records in the order to be replayed, each with the producer of its transaction.

        What it yields is how things stood when it was called, also if the state goes on meanwhile.
        """
        ...

    def next_deadline(self) -> int | None: ...

    def tick(self, now: int) -> Outcome: ...


M = TypeVar("M", bound=Machine)
Step = Callable[[M, int, Token], Outcome]
Duties = Callable[["Shard[M]", M], Callable[[], None] | None]
Need = Callable[[M, int, int], Needed]
"""What a machine needs of a range of the data: the first offset and the last."""


class InTransaction(NamedTuple):
    producer_id: int
    producer_epoch: int


class Surroundings(NamedTuple):
    """What every shard of a broker shares."""

    disk: Disk
    clock: SteadyClock
    committer: Committer
    tasks: Tasks
    turns: Turns


class Shard(Generic[M]):
    """Args:
    make: an empty machine, told the time.
    codec: of its records.
    duties: called after every step; what it returns is called when that step is durable.
    floor: the lowest offset that a machine needs of the partition this one is attached to, None for nothing.
    need: which offsets it needs above that; without it all are.
    """

    def __init__(
        self,
        partition: Partition,
        around: Surroundings,
        make: Callable[[int], M],
        codec: Codec,
        duties: Duties[M] | None = None,
        floor: Callable[[M], int | None] | None = None,
        need: Need[M] | None = None,
    ) -> None:
        self.partition = partition
        self._floor = floor
        self._need = need
        self._lowest: int | None = 0
        """The least floor since everything that the machine has decided was safe the last time; None for nothing."""
        if floor is not None:
            partition.floor = self._ask_floor
        if need is not None:
            partition.needs = self
        self._around = around
        self._make = make
        self._codec = codec
        self._duties = duties
        self._machine: M | None = None
        self._loading: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        """Set when the machine is there, or could not be loaded and is tried again later."""
        self._waiting: dict[Token, asyncio.Future[Any]] = {}
        self._next_token = 0
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        """When it goes off. A handle does not always know: what is due by the time uvloop is asked has none."""
        self._since_snapshot = 0
        self._kept = 0
        self._saving = asyncio.Lock()
        self._closed = False
        self._turn = Turn()
        self._ending: asyncio.Handle | None = None
        """Ends the turn, if it has any records."""
        self.replayed = 0
        """Records the last start read from the log, besides the snapshot's."""

    # --- asking

    async def ask(self, step: Step[M], written_in: InTransaction | None = None) -> Any:
        """Take a step and return its reply, once it is safe to be told. Raises PenstockError."""
        machine = self._machine
        if machine is None or self._closed:
            machine = await self.machine()
        if written_in is not None:
            self._check_epoch(written_in)
        self._next_token = token = self._next_token + 1
        try:
            outcome = step(machine, self._around.clock.now_ms(), token)
        except Exception as error:
            self._broke_off(error)
            raise
        waiting = self._waiting[token] = asyncio.get_running_loop().create_future()
        try:
            self._carry_out(machine, outcome, written_in)
            if len(self.partition.state.replicas) > 1 and any(reply.to == token for reply in outcome.replies):
                return await self._replicated(waiting)
            return await waiting
        finally:
            self._waiting.pop(token, None)
            del outcome, waiting  # an error in them would hold this frame, and this frame the error

    def _check_epoch(self, written_in: InTransaction) -> None:
        """Whether a producer's epoch is not over in this log: nobody would ever decide what comes behind its marker."""
        known = self.partition.leading().state.producers.get(written_in.producer_id)
        if known is not None and written_in.producer_epoch < known.epoch:
            raise PenstockError(
                Code.INVALID_PRODUCER_EPOCH,
                f"producer {written_in.producer_id} is fenced: epoch {written_in.producer_epoch} is older than "
                f"{known.epoch} in {self._name}",
            )

    async def _replicated(self, waiting: "asyncio.Future[Any]") -> Any:
        """An answer that is there and only waits for other replicas, which may be away for long."""
        try:
            async with asyncio.timeout(_LONGEST_WAIT_S):
                return await waiting
        except TimeoutError:
            raise PenstockError(
                Code.COORDINATOR_NOT_AVAILABLE, f"{self._name} is not replicated in time; ask again"
            ) from None
        finally:
            del waiting

    @property
    def loaded(self) -> M | None:
        """The machine, if it is there now."""
        return self._machine

    async def machine(self) -> M:
        """The machine, when it is loaded. To be looked at, or changed by a step, without an await in between."""
        if self._machine is None and not self._closed:
            self._check_led()
            self._begin_loading()
            epoch = self.partition.leader_epoch
            with suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_WAIT_S):
                    await self._tried.wait()
            if self.partition.leader_epoch != epoch:  # who asked may have asked another broker since, and gone on
                raise PenstockError(Code.NOT_COORDINATOR, f"{self._name} got another leader while it was loaded")
        if self._closed:
            raise PenstockError(Code.COORDINATOR_NOT_AVAILABLE, "the broker stops")
        if self._machine is None:
            self._check_led()
            if not self._tried.is_set():
                raise PenstockError(Code.COORDINATOR_LOADING, f"{self._name} is being loaded")
            raise PenstockError(Code.COORDINATOR_NOT_AVAILABLE, f"{self._name} cannot be read now")
        return self._machine

    def _check_led(self) -> None:
        if not self.is_here:
            raise PenstockError(Code.NOT_COORDINATOR, f"{self._name} is led by broker {self.partition.state.leader}")

    @property
    def is_here(self) -> bool:
        """Whether this broker coordinates, or is the one that should and cannot."""
        partition = self.partition
        return partition.led is not None or (partition.offline is not None and not partition.is_elsewhere)

    def gained(self) -> None:
        """This broker leads the partition now: load the machine; time-outs run."""
        if not self._closed:
            self._begin_loading()

    def lost(self) -> None:
        """It leads no more, or in another epoch: the machine is somebody else's."""
        self._tried.set()  # whoever waits for it goes elsewhere
        self._tried = asyncio.Event()
        self._forget_machine()
        self._send_away(Code.NOT_COORDINATOR, f"{self._name} is led by another broker now")

    def step(self, step: Callable[[M, int], Outcome]) -> None:
        """Take a step nobody waits for; none if the machine is not loaded."""
        machine = self._machine
        if machine is not None:
            try:
                outcome = step(machine, self._around.clock.now_ms())
            except Exception as error:
                self._broke_off(error)
                raise
            self._carry_out(machine, outcome)

    def marker(self, producer_id: int, committed: bool) -> None:
        """A marker was appended to this partition; the turn was ended right before that."""
        if self._machine is not None:  # else it is in the log that will be read
            self._machine.marker(producer_id, committed=committed)
            self._since_snapshot += 1
            self._carry_out(self._machine, Outcome())

    # --- what is needed of the data

    def _ask_floor(self) -> int | None:
        """A crash may undo what is not safe yet, so whatever was needed since it was counts as needed still."""
        machine, log = self._machine, self.partition.led
        if machine is None or log is None or self._floor is None:
            return 0
        if self._turn.records or self.partition.high_watermark < log.end_offset:
            self._note_floor(machine)
        else:
            self._lowest = self._floor(machine)
        return self._lowest

    async def ask_needed(self, first: int, last: int) -> Needed:
        """What is needed of a range of the data, by all that is safe. Raises PenstockError: that cannot be told now."""
        need = self._need
        assert need is not None
        found: Needed = await self.ask(
            lambda machine, now, to: Outcome(replies=(Reply(to, need(machine, first, last)),))
        )
        return found

    def needed_now(self, first: int, last: int) -> Needed:
        """The same as things stand, safe or not; all of it, while that is not known."""
        machine = self._machine
        if machine is None or self._need is None or self.partition.led is None:
            return Needed(((first, last),), last)
        return self._need(machine, first, last)

    def _note_floor(self, machine: M) -> None:
        if self._floor is not None:
            floors = [floor for floor in (self._lowest, self._floor(machine)) if floor is not None]
            self._lowest = min(floors, default=None)

    # --- carrying out

    def _broke_off(self, error: Exception) -> None:
        """A machine whose step broke off is not what its log says, unless the step was refused: nothing changed."""
        if not isinstance(error, PenstockError):
            self._start_over(error)

    def _carry_out(self, machine: M, outcome: Outcome, written_in: InTransaction | None = None) -> None:
        """Have the records of a step kept, and its replies sent when they are: with the turn, if that has any."""
        try:
            records = [self._codec.encode(entry) for entry in outcome.records]
        except (StructError, ValueError) as error:
            self._start_over(error)
            return
        if written_in is None and (records or self._turn.records):
            self._turn.add(records, outcome.replies)
            if self._ending is None:
                self._ending = asyncio.get_running_loop().call_soon(self.end_turn)
            if self._turn.size_bytes >= _MOST_GATHERED_BYTES:
                self.end_turn()
            return
        self.end_turn()
        if self._machine is machine:
            self._keep(machine, records, outcome.replies, written_in)

    def end_turn(self) -> None:
        """Append now what was gathered, if there is anything."""
        machine, turn = self._machine, self._turn
        if turn.records and machine is not None:
            self._forget_turn()
            self._keep(machine, turn.records, turn.replies)

    async def turn_ended(self) -> None:
        """Return when all that was gathered by now is appended, or is not going to be."""
        await asyncio.sleep(0)  # others may have something for the same turn
        self.end_turn()

    def _forget_turn(self) -> None:
        self._turn = Turn()
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    def _keep(
        self, machine: M, records: list[Kept], replies: Sequence[Reply], written_in: InTransaction | None = None
    ) -> None:
        if records:
            try:
                self._append(records, written_in)
            except Exception as error:
                self._start_over(error)
                if not isinstance(error, PenstockError | StructError | ValueError):
                    raise
                return
            self._note_floor(machine)
        duty = self._duties(self, machine) if self._duties is not None else None
        log = self.partition.leading()
        if (replies or duty) and self.partition.high_watermark >= log.end_offset:
            self._deliver(machine, replies, duty)
        elif replies or duty:
            self.partition.when_safe(log.end_offset - 1, lambda _: self._deliver(machine, replies, duty), patient=True)
        self._set_timer(machine)
        if self._since_snapshot >= max(SNAPSHOT_EVERY, self._kept) and not self._saving.locked():
            self.save_soon()

    def _append(self, kept: list[Kept], written_in: InTransaction | None) -> None:
        now_ms = self._around.clock.now_ms()
        records = [(key, value, (), now_ms) for key, value in kept]
        if written_in is None:
            batch = build_batch(records)
        else:
            producer_id, epoch = written_in
            batch = build_batch(records, producer_id=producer_id, producer_epoch=epoch, transactional=True)
        self.partition.append_own(bytearray(batch))
        self._since_snapshot += len(kept)

    def _deliver(self, machine: M, replies: Sequence[Reply], duty: Callable[[], None] | None) -> None:
        if self._machine is not machine or self.partition.led is None:
            return  # it was thrown away, and who waited was told
        for token, answer in replies:
            waiting = self._waiting.get(token)
            if waiting is None or waiting.done():
                continue
            if isinstance(answer, PenstockError):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)
        if duty is not None:
            duty()

    def _start_over(self, error: Exception) -> None:
        """The machine has changed and its log has not: forget the machine."""
        log_.limited("append").warning("coordinator starts over", partition=self._name, error=str(error))
        self._forget_machine()
        self._send_away(Code.COORDINATOR_NOT_AVAILABLE, f"{self._name} cannot be written: {error}")
        self._begin_loading()

    def _forget_machine(self) -> None:
        """With all it has decided that is not in the log."""
        self._machine = None
        self._forget_turn()
        self._tried.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send_away(self, code: Code, text: str) -> None:
        for waiting in list(self._waiting.values()):
            if not waiting.done():
                waiting.set_exception(PenstockError(code, text))

    # --- time

    def _set_timer(self, machine: M) -> None:
        deadline = machine.next_deadline()
        if deadline is None:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + max(0.001, (deadline - self._around.clock.now_ms()) / 1000)
        if self._timer is not None:
            if self._timer_at <= due + 0.001:
                return  # it will look again then
            self._timer.cancel()
        self._timer, self._timer_at = loop.call_at(due, self._tick), due

    def _tick(self) -> None:
        self._timer = None
        machine = self._machine
        if machine is None or self._closed:
            return
        now = self._around.clock.now_ms()
        deadline = machine.next_deadline()
        outcome = Outcome()
        if deadline is not None and deadline <= now:
            try:
                outcome = machine.tick(now)
            except Exception as error:
                self._broke_off(error)
                raise
        self._carry_out(machine, outcome)

    # --- loading

    async def load(self) -> None:
        """Load the machine, if nobody has asked for it yet."""
        await self.machine()

    def _begin_loading(self) -> None:
        if self._loading is None or self._loading.done():
            self._loading = self._around.tasks.spawn(self._load(), f"load {self.partition.topic}")

    async def _load(self) -> None:
        """Load the machine, again and again if it must be: time-outs run and transactions are to be ended."""
        pause = _FIRST_PAUSE_S
        while not self._closed and self.is_here:
            try:
                machine = await self._replay()
            except PenstockError as error:
                if error.retriable:
                    await asyncio.sleep(_FIRST_PAUSE_S)
                    continue
                log_.error("coordinator cannot be loaded", partition=self._name, error=str(error), help=error.help)
            except OSError as error:
                if not is_shortage(error):
                    raise
                log_.limited("load").warning("coordinator cannot be loaded", partition=self._name, error=str(error))
            else:
                self._machine = machine
                if self._floor is not None:
                    self._lowest = self._floor(machine)  # all it was made of is committed
                self._tried.set()
                self._carry_out(machine, Outcome())
                return
            self._tried.set()
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def _replay(self) -> M:
        log, epoch = self.partition.opened(), self.partition.leader_epoch
        await until_settled(self.partition)  # or another leader could take back what is told of it
        if self.partition.attached_to is not None:  # nor may it be told what records there are, which it is about
            await until_settled(self.partition.attached_to)
        self.partition.check_in_sync()
        machine = self._make(self._around.clock.now_ms())
        offset = await self._load_snapshot(machine, log)
        self.replayed = 0
        while offset < log.end_offset:
            stretch = await self._around.disk.run(read_batches, log, offset, log.end_offset, _READ_BYTES)
            for batch in stretch.batches:
                self.replayed += self._replay_batch(machine, batch, offset)
            offset = stretch.next_offset
        self._since_snapshot = self.replayed
        if self.partition.led is not log or self.partition.leader_epoch != epoch:
            raise PenstockError(Code.NOT_COORDINATOR, f"{self._name} got another leader while it was loaded")
        return machine

    async def _load_snapshot(self, machine: M, log: Log) -> int:
        try:
            snapshot = await self._around.disk.run(load_snapshot, self._around.disk, log.directory)
        except DamagedFile as error:
            log_.warning("coordinator snapshot is damaged; the log is read from its start", error=str(error))
            snapshot = None
        # Above a snapshot older than the last compaction, tombstones and markers may be gone; the whole log is sound.
        oldest = max(log.log_start, log.state.gaps_to)
        if snapshot is None or not oldest <= snapshot.offset <= log.end_offset:
            return log.log_start
        now = self._around.clock.now_ms()
        self._kept = len(snapshot.records)
        for at, record in enumerate(snapshot.records):
            if at % _ENCODED_AT_ONCE == 0:
                await asyncio.sleep(0)
            entry = self._codec.decode(record.key, record.value)
            if entry is not None:
                machine.replay(entry, -1, record.producer_id, now)
        return snapshot.offset

    def _replay_batch(self, machine: M, batch: memoryview, start_offset: int) -> int:
        header, now, count = decode_header(batch), self._around.clock.now_ms(), 0
        if header.is_control:
            marker = decode_marker(batch)
            if marker is not None:
                machine.marker(header.producer_id, committed=marker is Marker.COMMIT)
            return 1
        producer_id = header.producer_id if header.is_transactional else None
        for offset, _, record in iterate_batch(batch, _LARGEST_OPENED):
            entry = self._codec.decode(record.key, record.value)
            if entry is not None and offset >= start_offset:
                machine.replay(entry, offset, producer_id, now)
                count += 1
        return count

    # --- snapshots

    def save_soon(self) -> None:
        """Have a snapshot saved in the background."""
        self._around.tasks.spawn(self.save(), f"snapshot {self.partition.topic}")

    async def save(self) -> None:
        """Save a snapshot of the state as it is now; without room for it, the one that is there has to do."""
        async with self._saving:
            try:
                await self._save()
            except OSError as error:
                if not is_shortage(error):
                    raise

    async def _save(self) -> None:
        self.end_turn()
        machine, log = self._machine, self.partition.log
        if machine is None or log is None or self._since_snapshot == 0:
            return
        offset, covered = log.end_offset, self._since_snapshot
        encoded: list[bytes] = []
        for at, (entry, producer_id) in enumerate(machine.dump()):
            if at % _ENCODED_AT_ONCE == 0:
                await asyncio.sleep(0)
            encoded.append(encode_record(SavedRecord(*self._codec.encode(entry), producer_id)))
        await self._around.committer.commit(log)
        if self.partition.led is not log or self.partition.high_watermark < offset:
            return  # what is not committed may be taken back, and a snapshot must not outlive it; the next one will do
        await self._around.disk.run(save_snapshot, self._around.disk, log.directory, offset, encoded)
        self._kept = len(encoded)
        self._since_snapshot -= covered

    async def close(self) -> None:
        """Send everybody away and leave a snapshot behind."""
        self._closed = True
        self._tried.set()
        if self._timer is not None:
            self._timer.cancel()
        self._send_away(Code.COORDINATOR_NOT_AVAILABLE, "the broker stops")
        await self.save()
        self._machine = None

    @property
    def _name(self) -> str:
        return f"{self.partition.topic}-{self.partition.index}"
