"""What a nemesis can do to the cluster. Each fault begins, lasts, and ends by itself; a cancelled one is healed.

Faults that make a disk lose what it said was safe hit one broker in a run and no other: records are promised to survive
the loss of one disk less than acknowledging needs (min ISR).
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from penstock.cluster.keys import PARTITIONS, broker_key
from penstock.cluster.metadata.transaction import make_transaction
from penstock.engine.partition_state import PartitionState
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import Link
from tests.simulation.cluster import CLIENTS, DISK_DELAYS_S, SimulatedCluster, host_of

if TYPE_CHECKING:
    from tests.simulation.world import World

_STOP_S = 8.0
"""How long a clean stop may take before whoever asked for it loses patience."""


class Faults:
    """Args:
    spoiled: the broker whose disk cannot be trusted, if any is to be hit that way.
    """

    def __init__(self, world: "World", random: Random, spoiled: int) -> None:
        self._world = world
        self._cluster: SimulatedCluster = world.cluster
        self._random = random
        self._spoiled = spoiled

    def _one(self) -> int:
        """A broker; more often than not the one that leads most, where it hurts."""
        ids = self._cluster.ids
        if self._random.random() < 0.5:
            led = dict.fromkeys(ids, 0)
            for broker in self._world.brokers():
                led[broker.node_id] = len(broker.node.roles.led())
            return max(ids, key=lambda node_id: led[node_id])
        return self._random.choice(ids)

    def _some(self, count: int) -> list[int]:
        return self._random.sample(self._cluster.ids, count)

    def _note(self, what: str, *who: object) -> None:
        self._world.note(f"fault {what} {' '.join(map(str, who))}")

    # --- processes and machines

    async def _down(self, what: str, ids: Sequence[int], duration_s: float, *, power_cut: bool) -> None:
        await self._moment()
        await self._down_now(what, ids, duration_s, power_cut=power_cut)

    async def _moment(self) -> None:
        """Often the worst one."""
        if self._random.random() < 0.6:
            await self._world.next_promise(0.5)

    async def _down_now(self, what: str, ids: Sequence[int], duration_s: float, *, power_cut: bool) -> None:
        self._note(what, *ids)
        for node_id in ids:
            self._cluster.kill(node_id, power_cut=power_cut)
        for node_id in ids:
            await asyncio.sleep(duration_s * self._random.random() ** 2)
            self._world.start(node_id)

    async def kill_one(self, duration_s: float) -> None:
        await self._down("kill", [self._one()], duration_s, power_cut=False)

    async def kill_two(self, duration_s: float) -> None:
        await self._down("kill", self._some(2), duration_s, power_cut=False)

    async def kill_all(self, duration_s: float) -> None:
        await self._down("kill", self._some(len(self._cluster.ids)), duration_s, power_cut=False)

    async def power_one(self, duration_s: float) -> None:
        await self._down("power cut", [self._one()], duration_s, power_cut=True)

    async def power_all(self, duration_s: float) -> None:
        await self._down("power cut", self._some(len(self._cluster.ids)), duration_s, power_cut=True)

    async def stop_one(self, duration_s: float) -> None:
        node_id = self._one()
        await self._stop(node_id)
        await asyncio.sleep(duration_s * self._random.random() / 2)
        self._world.start(node_id)

    async def _stop(self, node_id: int) -> None:
        self._note("clean stop", node_id)
        process = self._cluster.processes.get(node_id)
        try:
            async with asyncio.timeout(_STOP_S):
                await self._cluster.stop(node_id)
        except TimeoutError:
            self._note("stop takes too long", node_id)
        if process is not None and self._cluster.processes.get(node_id) is process:
            self._cluster.kill(node_id)

    async def pause_one(self, duration_s: float) -> None:
        node_id = self._one()
        process = self._cluster.processes.get(node_id)
        if process is None or process.paused:
            return
        self._note("pause", node_id)
        process.pause()
        try:
            await asyncio.sleep(2 + duration_s * 1.5)
        finally:
            self._note("resume", node_id)
            process.resume()

    # --- network

    async def _blocked(self, what: str, ways: Sequence[tuple[str, str]], duration_s: float) -> None:
        network = self._cluster.network
        self._note(what, *(f"{source}>{target}" for source, target in ways))
        closed = [way for way in ways if network.is_open(*way)]
        for way in closed:
            network.block(*way)
        try:
            await asyncio.sleep(duration_s)
        finally:
            self._note("unblock", *(f"{source}>{target}" for source, target in closed))
            for way in closed:
                network.unblock(*way)

    async def block_one_way(self, duration_s: float) -> None:
        source, target = self._some(2)
        await self._blocked("block", [(host_of(source), host_of(target))], duration_s)

    async def block_both_ways(self, duration_s: float) -> None:
        one, other = map(host_of, self._some(2))
        await self._blocked("block", [(one, other), (other, one)], duration_s)

    async def isolate_one(self, duration_s: float) -> None:
        """From the other brokers, and perhaps from clients; etcd is still in reach."""
        alone = self._one()
        others = [host_of(node_id) for node_id in self._cluster.ids if node_id != alone]
        if self._random.random() < 0.5:
            others.append(CLIENTS)
        host = host_of(alone)
        await self._blocked("isolate", [way for other in others for way in ((host, other), (other, host))], duration_s)

    # --- etcd

    async def cut_from_etcd(self, duration_s: float) -> None:
        node_id = self._one()
        link = self._cluster.etcd.link(host_of(node_id))
        self._note("cut from etcd", node_id)
        link.cut = True
        try:
            await asyncio.sleep(duration_s * 1.5)
        finally:
            self._note("etcd in reach", node_id)
            link.cut = False

    async def etcd_down(self, duration_s: float) -> None:
        self._note("etcd down")
        self._cluster.etcd.down = True
        try:
            await asyncio.sleep(duration_s)
        finally:
            self._note("etcd up")
            self._cluster.etcd.down = False

    async def etcd_losses(self, duration_s: float) -> None:
        """Calls without an answer, some of them made all the same."""
        node_id = self._one()
        link = self._cluster.etcd.link(host_of(node_id))
        self._note("etcd losses", node_id)
        link.loss = 0.5
        try:
            await asyncio.sleep(duration_s)
        finally:
            link.loss = 0.0

    async def late_watch(self, duration_s: float) -> None:
        node_id = self._random.choice(self._cluster.ids)
        link = self._cluster.etcd.link(host_of(node_id))
        link.watch_lag_s = self._random.choice((0.2, 1.0, 4.0)) * (0.5 + self._random.random())
        self._note("late watch", node_id, f"{link.watch_lag_s:.2f}")
        try:
            await asyncio.sleep(duration_s * 2)
        finally:
            link.watch_lag_s = 0.0

    async def odd_watch(self, duration_s: float) -> None:
        node_id = self._one()
        link = self._cluster.etcd.link(host_of(node_id))
        self._note("odd watch", node_id)
        link.watch_repeats, link.watch_losses = 0.4, 0.3
        link.break_watches()
        try:
            await asyncio.sleep(duration_s * 2)
        finally:
            link.watch_repeats = link.watch_losses = 0.0

    async def false_suspicion(self, duration_s: float) -> None:
        """Brokers are taken for dead that are not: elections with all former leaders alive."""
        for _ in range(self._random.randint(1, 4)):
            self._suspect(self._one())
            await asyncio.sleep(duration_s * self._random.random() / 2)

    def _suspect(self, node_id: int) -> None:
        etcd, key = self._cluster.etcd, broker_key(node_id)
        entry = etcd.state.get(key)
        if entry is not None and not etcd.down:
            self._note("false suspicion", node_id)
            etcd.state.transact(make_transaction({key: entry.revision}, None, [key], None, 0))

    async def confusion(self, duration_s: float) -> None:
        """One election after the other; one broker hears of them late, and former leaders not at all."""
        etcd = self._cluster.etcd
        late = etcd.link(host_of(self._random.choice(self._cluster.ids)))
        late.watch_lag_s = 0.5 + duration_s * self._random.random()
        self._note("confusion", late.name, f"{late.watch_lag_s:.2f}")
        deaf: list[Link] = []
        try:
            for _ in range(self._random.randint(2, 4)):
                leader = self._leader()
                if self._random.random() < 0.5 and not deaf:
                    deaf.append(etcd.link(host_of(leader)))
                    deaf[0].cut = True
                self._suspect(leader)
                await asyncio.sleep(0.05 + duration_s * self._random.random() / 4)
            await asyncio.sleep(duration_s * self._random.random())
        finally:
            late.watch_lag_s = 0.0
            for link in deaf:
                link.cut = False

    def _leader(self) -> int:
        """Who leads some partition in truth."""
        states = [
            PartitionState.decode(entry.value, entry.revision)
            for entry in self._cluster.etcd.state.snapshot(PARTITIONS).entries
        ]
        leader = self._random.choice(states).leader
        return leader if leader in self._cluster.ids else self._one()

    # --- disk and clock

    async def slow_disk(self, duration_s: float) -> None:
        node_id = self._one()
        delay_s = self._random.choice((0.05, 0.3, 1.5))
        self._note("slow disk", node_id, delay_s)
        normal_s = self._cluster.disks[node_id].max_delay_s
        self._cluster.disks[node_id].max_delay_s = delay_s
        try:
            await asyncio.sleep(duration_s)
        finally:
            self._cluster.disks[node_id].max_delay_s = min(normal_s, max(DISK_DELAYS_S))

    async def clock_jump(self, duration_s: float) -> None:
        node_id = self._one()
        by_ms = self._random.choice((-1, 1)) * self._random.randrange(1000, 800_000)
        self._note("clock jumps", node_id, by_ms)
        self._cluster.clocks[node_id].jump_ms(by_ms)
        await asyncio.sleep(duration_s)
        self._cluster.clocks[node_id].jump_ms(-by_ms)

    async def failing_sync(self, duration_s: float) -> None:
        """A sync fails and the broker stops."""
        node_id = self._spoiled
        self._note("failing sync", node_id)
        self._world.allow_crash(node_id)
        self._cluster.disks[node_id].fail("sync_files", errno.EIO, when=self._random.randint(1, 3))
        await asyncio.sleep(duration_s)
        self._cluster.disks[node_id].clear_faults()
        self._world.start(node_id)

    async def lying_sync(self, duration_s: float) -> None:
        """What was said to be synced is not, and the power fails."""
        node_id = self._spoiled
        self._note("lying sync", node_id)
        self._world.allow_crash(node_id)  # its files need not make sense from now on
        self._cluster.disks[node_id].lies = True
        await asyncio.sleep(duration_s)
        await self._down("power cut", [node_id], 1.0, power_cut=True)

    async def bit_rot(self, duration_s: float) -> None:
        """A byte or some of a disk are not what they were when the machine comes back."""
        node_id = self._spoiled
        self._world.allow_crash(node_id)
        await self._moment()
        if self._random.random() < 0.5:
            await self._stop(node_id)
        self._cluster.kill(node_id, power_cut=True)
        disk = self._cluster.disks[node_id]
        files = [path for path in disk.files() if "/logs/" in path and disk.size_of(path)]
        for path in self._random.sample(files, min(len(files), self._random.randint(1, 3))):
            at = self._random.randrange(disk.size_of(path))
            self._note("bit rot", node_id, path, at)
            disk.flip_byte(path, at, 1 << self._random.randrange(8))
        await asyncio.sleep(duration_s * self._random.random())
        self._world.start(node_id)

    async def old_files(self, duration_s: float) -> None:
        """A disk, or one partition on it, is put back as it was some time before."""
        node_id = self._spoiled
        self._world.allow_crash(node_id)
        if self._random.random() < 0.3:
            await self._stop(node_id)
        backup = self._cluster.disks[node_id].backup()
        self._world.start(node_id)
        await asyncio.sleep(1 + duration_s)
        others = await self._go_down(node_id)
        held = _directories(backup)
        if self._random.random() < 0.4 or not held:
            self._note("old disk", node_id)
            self._cluster.disks[node_id] = backup
        else:
            path = self._random.choice(held)
            self._note("old directory", node_id, path)
            self._cluster.disks[node_id].restore(path, backup)
        await self._come_back(node_id, others, duration_s)

    async def lost_directory(self, duration_s: float) -> None:
        """One partition's files are gone when the broker comes back."""
        node_id = self._spoiled
        self._world.allow_crash(node_id)
        others = await self._go_down(node_id)
        held = _directories(self._cluster.disks[node_id])
        if held:
            path = self._random.choice(held)
            self._note("lost directory", node_id, path)
            self._cluster.disks[node_id].lose(path)
        await self._come_back(node_id, others, duration_s)

    async def _go_down(self, node_id: int) -> list[int]:
        """Cleanly more often than not. Sometimes it is the last that was there: who else it takes down with it."""
        others = [other for other in self._cluster.ids if other != node_id]
        self._random.shuffle(others)
        taken = others if self._random.random() < 0.5 else []
        for other in taken[:-1]:
            self._note("kill", other)
            self._cluster.kill(other)
            await asyncio.sleep(self._random.random())
        await self._moment()
        if self._random.random() < 0.7:
            await self._stop(node_id)
        self._cluster.kill(node_id, power_cut=True)
        for other in taken:
            self._cluster.kill(other)
        return taken

    async def _come_back(self, node_id: int, others: Sequence[int], duration_s: float) -> None:
        for each in (node_id, *others):
            await asyncio.sleep(duration_s * self._random.random() / 2)
            self._world.start(each)

    async def lose_disk(self, duration_s: float) -> None:
        """A fire: one disk is lost for good, and the others may lose their power with it."""
        node_id = self._spoiled
        others = [other for other in self._cluster.ids if other != node_id and self._random.random() < 0.5]
        await self._moment()
        self._world.replace_disk(node_id)
        await self._down_now("power cut", [*others, node_id], duration_s, power_cut=True)


def _directories(disk: FaultyDisk) -> list[str]:
    """Of partitions."""
    found = {path.rpartition("/")[0] for path in disk.files() if path.endswith("/partition.meta")}
    return sorted(path for path in found if "/~" not in path)


Fault = Callable[[Faults, float], Awaitable[None]]
KINDS: dict[str, Fault] = {
    function.__name__: function
    for function in (
        Faults.kill_one,
        Faults.kill_two,
        Faults.kill_all,
        Faults.power_one,
        Faults.power_all,
        Faults.stop_one,
        Faults.pause_one,
        Faults.block_one_way,
        Faults.block_both_ways,
        Faults.isolate_one,
        Faults.cut_from_etcd,
        Faults.etcd_down,
        Faults.etcd_losses,
        Faults.false_suspicion,
        Faults.confusion,
        Faults.late_watch,
        Faults.odd_watch,
        Faults.slow_disk,
        Faults.clock_jump,
        Faults.failing_sync,
        Faults.lying_sync,
        Faults.bit_rot,
        Faults.old_files,
        Faults.lost_directory,
        Faults.lose_disk,
    )
}
SPOILING = ("failing_sync", "lying_sync", "bit_rot", "old_files", "lost_directory", "lose_disk")
"""At most one of them in a run, once."""
