"""A protocol of lines over a network in virtual time: pushes, heartbeats, silence, a stop, and peers that misbehave."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.doors.transport import RecordingLog

from penstock.net import connection as connection_module
from penstock.net.connection import Answer, Connection, Connections, Limits
from penstock.net.lines import LineBuffer
from penstock.net.room import Room
from penstock.observe.stats import Stats
from penstock.testing.memory_network import MemoryClient, MemoryNetwork
from penstock.testing.virtual_clock import VirtualClock, run_virtual

SWEEP_S = 2.0


class Courier:
    """`PUB n` and n bytes: delivered back as `MSG`. `SUB n k`: n messages of k bytes. `WAIT`: an answer later."""

    def __init__(self, connection: Connection) -> None:
        assert isinstance(connection.framing, LineBuffer)
        self.connection = connection
        self.lines = connection.framing
        self.payloads: list[bytes] = []
        self.waiting: list[Answer] = []
        self.left = self.size = 0
        self.most_unsent = 0
        self.is_payload = False
        self.over = False

    def handle(self, frame: memoryview, answer: Answer) -> None:
        if self.is_payload:
            self.is_payload = False
            self.payloads.append(bytes(frame))
            answer.send((b"MSG %d\n" % len(frame), self.payloads[-1]))
            return
        verb, *numbers = bytes(frame).split(b" ")
        if verb == b"PUB":
            self.lines.expect(int(numbers[0]))
            self.is_payload = True
            answer.skip()
        elif verb == b"SUB":
            self.left, self.size = map(int, numbers)
            answer.skip()
            self.writable()
        elif verb == b"WAIT":
            self.waiting.append(answer)
        elif verb == b"PING":
            answer.send((b"PONG\n",))
        else:
            answer.skip()

    def writable(self) -> None:
        while self.left and self.connection.is_writable:
            self.left -= 1
            self.connection.push((b"m" * (self.size - 1) + b"\n",))
            self.most_unsent = max(self.most_unsent, self.connection.unsent)

    def disconnected(self) -> None:
        self.over = True


class PoliteCourier(Courier):
    """Says goodbye when the broker stops; to who awaits its own end, it leaves the last word."""

    leaves_it_to_the_peer = False
    goodbyes = 0

    def draining(self) -> bool:
        self.goodbyes += 1
        self.connection.push((b"BYE\n",))
        return self.leaves_it_to_the_peer


class Office:
    """A listener of couriers."""

    def __init__(self, limits: Limits, kind: type[Courier], seed: int) -> None:
        self.clock, self.stats, self.kind = VirtualClock(), Stats(), kind
        self.network = MemoryNetwork(seed)
        self.couriers: list[Courier] = []
        self.connections = Connections(
            limits,
            self.stats,
            self.clock,
            self._make,
            asyncio.get_running_loop().call_soon,
            make_framing=self._frame,
            ordered=False,
        )

    @staticmethod
    def _frame(limits: Limits, room: Room) -> LineBuffer:
        return LineBuffer(limits.frame_bytes, room, line_limit=1000)

    def _make(self, connection: Connection) -> Courier:
        self.couriers.append(self.kind(connection))
        return self.couriers[-1]

    async def connect(self, window_bytes: int = 64 * 1024) -> tuple[MemoryClient, Courier]:
        client = await self.network.connect("office", 1, window_bytes=window_bytes)
        known = len(self.couriers)
        await self.until(lambda: len(self.couriers) > known)
        return client, self.couriers[-1]

    async def until(self, condition: Callable[[], bool], timeout_s: float = 100) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - polling is free in virtual time
                await asyncio.sleep(0.01)

    async def sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.connections.sweep()


def in_office(
    scenario: Callable[[Office], Awaitable[None]], limits: Limits | None = None, kind: type[Courier] = Courier
) -> None:
    for seed in range(3):

        async def main(seed: int = seed) -> None:
            office = Office(limits or Limits(), kind, seed)
            await office.network.listen("office", 1, office.connections.accept)
            sweeping = asyncio.create_task(office.sweep())
            await scenario(office)
            sweeping.cancel()

        run_virtual(main, seed)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> RecordingLog:
    recording = RecordingLog()
    monkeypatch.setattr(connection_module, "log_", recording)
    return recording


def test_lines_and_payloads_reach_the_session_and_come_back() -> None:
    async def scenario(office: Office) -> None:
        client, courier = await office.connect()
        payloads = [b"a\nb\0", b"", b"x" * 5000, b"y" * 300_000]
        for payload in payloads:
            client.send(b"PUB %d\n" % len(payload) + payload)
            answer = b"MSG %d\n" % len(payload) + payload
            assert await client.receive_exactly(len(answer)) == answer
        client.send(b"PING\n" * 3000)
        assert await client.receive_exactly(15_000) == b"PONG\n" * 3000
        assert courier.payloads == payloads

    in_office(scenario)


def test_a_subscriber_that_reads_slowly_gets_everything_and_costs_little() -> None:
    async def scenario(office: Office) -> None:
        client, courier = await office.connect(window_bytes=1000)
        client.send(b"SUB 500 200\n")
        for _ in range(100):
            await asyncio.sleep(0.5)
            assert await client.receive_exactly(1000) == (b"m" * 199 + b"\n") * 5
        assert courier.left == 0
        assert courier.most_unsent <= 10_000 + 200

    in_office(scenario, Limits(pushed_bytes=10_000))


def test_a_subscriber_that_does_not_read_is_closed(log: RecordingLog) -> None:
    async def scenario(office: Office) -> None:
        client, courier = await office.connect(window_bytes=1000)
        client.send(b"SUB 1000000 200\n")
        await client.closed()
        assert courier.over
        assert courier.most_unsent <= 10_200
        assert office.clock.monotonic() < 40
        assert log.warnings[-1]["reason"] == "peer does not read"
        assert office.connections.holders.held_bytes == 0

    in_office(scenario, Limits(pushed_bytes=10_000))


def test_a_peer_that_sends_an_endless_line_is_closed(log: RecordingLog) -> None:
    async def scenario(office: Office) -> None:
        client, courier = await office.connect()
        client.send(b"x" * 100_000)
        await client.closed()
        assert courier.over
        assert "within 1000 bytes" in str(log.warnings[-1]["reason"])

    in_office(scenario)


def test_a_peer_that_announces_too_large_a_payload_is_closed(log: RecordingLog) -> None:
    async def scenario(office: Office) -> None:
        client, _ = await office.connect()
        client.send(b"PUB 5001\n")
        await client.closed()
        assert "payload of 5001 bytes" in str(log.warnings[-1]["reason"])
        assert not log.bugs

    in_office(scenario, Limits(frame_bytes=5000))


@pytest.mark.parametrize("start", [b"PU", b"PUB 100000\n", b"PUB 100000\nxy"])
def test_a_frame_that_does_not_end_is_closed(log: RecordingLog, start: bytes) -> None:
    async def scenario(office: Office) -> None:
        client, _ = await office.connect()
        client.send(start)
        await client.closed()
        assert office.clock.monotonic() < 40
        assert log.warnings[-1]["reason"] == "request came too slowly"

    in_office(scenario)


def test_a_payload_that_is_announced_and_does_not_come_is_soon_in_nobodys_way(log: RecordingLog) -> None:
    async def scenario(office: Office) -> None:
        greedy, _ = await office.connect()
        honest, _ = await office.connect()
        greedy.send(b"PUB 1500000\n")
        await office.until(lambda: office.connections.room.taken_bytes > 1_000_000)
        honest.send(b"PUB 1200000\n" + bytes(1_200_000))
        answer = b"MSG 1200000\n" + bytes(1_200_000)
        assert await honest.receive_exactly(len(answer)) == answer
        await greedy.closed()
        assert office.clock.monotonic() < 10

    in_office(scenario, Limits(receive_bytes=2_000_000))


def test_a_peer_that_is_silent_for_longer_than_agreed_is_closed(log: RecordingLog) -> None:
    async def scenario(office: Office) -> None:
        client, courier = await office.connect()
        client.send(b"WAIT\n")
        courier.connection.expect_within(5)
        for _ in range(10):
            await asyncio.sleep(4)
            client.send(b"\n")
        assert not courier.over
        since = office.clock.monotonic()
        await client.closed()
        assert 5 <= office.clock.monotonic() - since <= 5 + SWEEP_S + 0.1
        assert "longer than agreed" in str(log.warnings[-1]["reason"])

    in_office(scenario)


def test_a_peer_may_be_silent_for_ever_if_that_is_agreed() -> None:
    async def scenario(office: Office) -> None:
        agreed, patient = await office.connect()
        _, usual = await office.connect()
        patient.connection.expect_within(None)
        await asyncio.sleep(700)
        assert (patient.over, usual.over) == (False, True)
        agreed.send(b"PING\n")
        assert await agreed.receive_exactly(5) == b"PONG\n"

    in_office(scenario, Limits(idle_s=600))


def test_time_in_which_nothing_is_read_is_no_silence() -> None:
    async def scenario(office: Office) -> None:
        client, courier = await office.connect()
        courier.connection.expect_within(5)
        client.send(b"WAIT\nWAIT\nPING\n")
        await office.until(lambda: len(courier.waiting) == 2)
        await asyncio.sleep(60)
        for answer in courier.waiting:
            answer.skip()
        assert await client.receive_exactly(5) == b"PONG\n"

    in_office(scenario, Limits(in_flight=2))


def test_a_heartbeat_is_sent_when_nothing_else_was() -> None:
    async def scenario(office: Office) -> None:
        client, courier = await office.connect()
        beats: list[float] = []

        def beat() -> None:
            beats.append(office.clock.monotonic())
            courier.connection.push((b"\n",))

        start = office.clock.monotonic()
        courier.connection.send_heartbeats(1.0, beat)
        assert await client.receive_exactly(3) == b"\n\n\n"
        assert beats == pytest.approx([start + 1, start + 2, start + 3])
        for _ in range(20):  # an answer is as good
            await asyncio.sleep(0.5)
            client.send(b"PING\nNOTHING\n")
        assert await client.receive_exactly(100) == b"PONG\n" * 20
        assert len(beats) == 3
        for _ in range(6):  # a request without an answer is not
            await asyncio.sleep(0.5)
            client.send(b"NOTHING\n")
        assert len(beats) >= 5
        client.close()
        await office.until(lambda: courier.over)
        count = len(beats)
        await asyncio.sleep(10)
        assert len(beats) == count

    in_office(scenario)


def test_a_peer_that_does_not_read_gets_no_heartbeats_on_top() -> None:
    async def scenario(office: Office) -> None:
        client, courier = await office.connect(window_bytes=1000)
        client.send(b"SUB 10 1000\n")
        courier.connection.send_heartbeats(1.0, lambda: courier.connection.push((b"\n",)))
        await asyncio.sleep(20)
        assert courier.connection.unsent <= 9000
        assert await client.receive_exactly(10_000) == (b"m" * 999 + b"\n") * 10
        assert await client.receive_exactly(1) == b"\n"

    in_office(scenario)


def test_heartbeats_can_be_agreed_anew_but_not_to_keep_us_busy() -> None:
    async def scenario(office: Office) -> None:
        client, courier = await office.connect()
        courier.connection.send_heartbeats(1.0, lambda: courier.connection.push((b"1",)))
        courier.connection.send_heartbeats(3.0, lambda: courier.connection.push((b"3",)))
        assert await client.receive_exactly(2) == b"33"
        assert 6 <= office.clock.monotonic() < 6.1
        with pytest.raises(ValueError, match="every 0"):
            courier.connection.send_heartbeats(0.01, lambda: None)

    in_office(scenario)


def test_a_session_says_goodbye_and_requests_under_way_are_answered() -> None:
    async def scenario(office: Office) -> None:
        client, courier = await office.connect()
        client.send(b"WAIT\n")
        await office.until(lambda: len(courier.waiting) == 1)
        draining = asyncio.create_task(office.connections.drain(30))
        assert await client.receive_exactly(4) == b"BYE\n"
        await asyncio.sleep(1)
        assert not draining.done()
        client.send(b"PING\n")
        assert await client.receive_exactly(5) == b"PONG\n", "it may still be asked"
        courier.waiting[0].send((b"DONE\n",))
        assert await client.receive_exactly(5) == b"DONE\n"
        with pytest.raises(asyncio.IncompleteReadError):
            await client.receive_exactly(1)
        await draining
        assert office.clock.monotonic() < 3
        assert isinstance(courier, PoliteCourier)
        assert (courier.goodbyes, courier.over) == (1, True)

    in_office(scenario, kind=PoliteCourier)


def test_when_the_time_is_up_connections_are_closed_whatever_is_unanswered() -> None:
    async def scenario(office: Office) -> None:
        deaf, one = await office.connect(window_bytes=10)
        waiting, other = await office.connect()
        deaf.send(b"SUB 100 1000\n")
        waiting.send(b"WAIT\n")
        await office.until(lambda: one.most_unsent > 0 and len(other.waiting) == 1)
        start = office.clock.monotonic()
        await office.connections.drain(5)
        assert office.clock.monotonic() - start == pytest.approx(5, abs=0.1)
        await deaf.closed()
        await waiting.closed()

    in_office(scenario, kind=PoliteCourier)


def test_a_peer_that_has_the_last_word_is_waited_for() -> None:
    async def scenario(office: Office) -> None:
        client, courier = await office.connect()
        assert isinstance(courier, PoliteCourier)
        courier.leaves_it_to_the_peer = True
        draining = asyncio.create_task(office.connections.drain(30))
        assert await client.receive_exactly(4) == b"BYE\n"
        await asyncio.sleep(10)
        assert not courier.over
        client.close()
        await draining
        assert office.clock.monotonic() < 12

    in_office(scenario, kind=PoliteCourier)


def test_nobody_is_admitted_while_others_leave() -> None:
    async def scenario(office: Office) -> None:
        _, courier = await office.connect()
        courier.connection.push((b"hello",))
        draining = asyncio.create_task(office.connections.drain(30))
        await asyncio.sleep(0)
        late = await office.network.connect("office", 1)
        await late.closed()
        await draining
        assert len(office.couriers) == 1
        assert office.stats.connections_refused == 1

    in_office(scenario)


def test_sessions_without_a_goodbye_are_closed_at_once() -> None:
    async def scenario(office: Office) -> None:
        client, courier = await office.connect()
        client.send(b"WAIT\n")
        await office.until(lambda: len(courier.waiting) == 1)
        await office.connections.drain(30)
        assert courier.over
        assert office.clock.monotonic() < 1

    in_office(scenario)
