"""One partition with its records: brokers that copy, crash, stop, pause and lose disks, and a controller that elects.

A log is a list of epochs, an entry its place in it. Brokers act on views that may be old; the controller knows who is
there only by what it saw last. `committed` is what some leader has ever counted below its high watermark: nobody may
be elected who lacks any of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from penstock.cluster.election import Rules, admit_all, next_state
from penstock.cluster.image import End
from penstock.engine.partition_state import NOBODY, PartitionState


@dataclass
class Broker:
    broker_id: int
    incarnation: int = 1
    is_up: bool = True
    clean: bool = True
    """What it says about its last start."""
    stopped_cleanly: bool = False
    log: list[int] = field(default_factory=list)
    synced: int = 0
    high_watermark: int = 0
    view: PartitionState | None = None
    is_admitted: bool = True
    """As it knows itself: from the same look as its view, so never before what came before its admission."""
    min_isr: int = 1
    """What it believes that the topic needs."""
    ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    """A leader's: how far followers are in its epoch, and in which incarnation they said so."""
    joining: set[int] = field(default_factory=set)
    """A leader's: whom it has brought into sync without having seen it in the store."""
    damaged: bool = False
    """It has lost its disk and is not back in sync."""


class ElectionWorld:
    """See the module's text.

    Args:
        synced: flush=commit: a crash loses nothing that is synced, and only that counts. Else it may lose anything.
        wipes: whether disks get lost, as many at a time as the topic's promise allows.
        spares: brokers that hold nothing at first; with any, the partition moves, and brokers are drained.
    """

    def __init__(
        self, random: Random, brokers: int, min_isr: int, *, synced: bool, wipes: bool, spares: int = 0
    ) -> None:
        self.random = random
        self.synced = synced
        self.wipes = wipes
        self.min_isr = min_isr
        self.width = brokers
        self.spares = spares
        self.moves = 0
        self.drained: set[int] = set()
        replicas = tuple(range(1, brokers + 1))
        ids = tuple(range(1, brokers + spares + 1))
        self.state = PartitionState(replicas, replicas, 1, 0, revision=1)
        self.brokers = {broker_id: Broker(broker_id, view=self.state, min_isr=min_isr) for broker_id in ids}
        self.registered = dict.fromkeys(ids, (1, True))
        self.seen = dict(self.registered)
        self.admitted = dict.fromkeys(ids, 1)
        self.reports: dict[int, End] = {}
        self.committed: list[int] = []
        self.elections: dict[str, int] = {"isr": 0, "elr": 0, "last": 0, "nobody": 0}

    # --- brokers

    def produce(self, broker: Broker) -> None:
        if self.leads(broker) and len(broker.log) < 30:
            assert broker.view is not None
            broker.log.append(broker.view.leader_epoch)
            self.advance(broker)

    def sync(self, broker: Broker) -> None:
        if broker.is_up:
            broker.synced = len(broker.log)
            self.advance(broker)

    def fetch(self, broker: Broker) -> None:
        if not broker.is_up or broker.view is None or broker.view.leader in (NOBODY, broker.broker_id):
            return
        leader = self.brokers[broker.view.leader]
        if not self.leads(leader) or leader.view is None or leader.view.leader_epoch != broker.view.leader_epoch:
            return
        if broker.broker_id not in broker.view.replicas or broker.broker_id not in leader.view.replicas:
            return
        broker.synced = len(broker.log)  # a follower asks for what comes behind its synced end
        offset = len(broker.log)
        common = 0
        while common < min(offset, len(leader.log)) and broker.log[common] == leader.log[common]:
            common += 1
        if common < offset:
            del broker.log[common:]
            broker.synced = common
            broker.high_watermark = min(broker.high_watermark, common)
            return
        leader.ends[broker.broker_id] = (offset, broker.incarnation)
        self.advance(leader)
        broker.log += leader.log[offset:]
        broker.high_watermark = max(broker.high_watermark, min(leader.high_watermark, len(broker.log)))

    def look(self, broker: Broker) -> None:
        if not broker.is_up:
            return
        begins = broker.view is None or broker.view.leader_epoch != self.state.leader_epoch
        led = self.leads(broker)
        if begins:
            broker.ends = {}
        broker.view, broker.joining = self.state, set()
        broker.ends = {member: end for member, end in broker.ends.items() if member in self.state.replicas}
        broker.is_admitted = self.admitted[broker.broker_id] == broker.incarnation
        if broker.broker_id not in self.state.replicas and set(self.state.isr) == set(self.state.replicas):
            broker.log, broker.synced, broker.high_watermark, broker.damaged = [], 0, 0, False  # moved away
        if (begins or not led) and self.leads(broker):
            assert broker.log[: len(self.committed)] == self.committed, f"{broker.broker_id} leads without all"
        self.advance(broker)

    def learn_setting(self, broker: Broker) -> None:
        broker.min_isr = self.min_isr
        self.advance(broker)

    def leads(self, broker: Broker) -> bool:
        is_named = broker.view is not None and broker.view.leader == broker.broker_id
        return broker.is_up and broker.is_admitted and is_named

    def advance(self, leader: Broker) -> None:
        view = leader.view
        if not self.leads(leader) or view is None or len(view.isr) < min(leader.min_isr, view.width):
            return
        if view.elr or view.last:
            return
        others = {*view.isr, *leader.joining} - {leader.broker_id}
        ends = [leader.ends.get(member, (-1, 0))[0] for member in others]
        own = leader.synced if self.synced else len(leader.log)
        end = min([own, *ends])
        if end > leader.high_watermark:
            leader.high_watermark = end
            shared = min(end, len(self.committed))
            assert leader.log[:shared] == self.committed[:shared], f"{leader.broker_id} commits another history"
            self.committed += leader.log[len(self.committed) : end]

    def shrink(self, leader: Broker) -> None:
        if self.leads(leader) and leader.view == self.state:
            others = [member for member in self.state.isr if member != leader.broker_id]
            if others:
                out = self.random.choice(others)
                kept = [member for member in self.state.isr if member != out]
                self.write(self.state.with_isr(kept, min(leader.min_isr, self.state.width)))

    def expand(self, leader: Broker) -> None:
        if not self.leads(leader) or leader.view != self.state:
            return
        start = next((at for at, epoch in enumerate(leader.log) if epoch >= self.state.leader_epoch), len(leader.log))
        for member, (end, incarnation) in leader.ends.items():
            is_live = self.registered.get(member, (0, True))[0] == incarnation == self.admitted[member]
            is_live = is_live and member in self.state.replicas
            if member not in self.state.isr and is_live and end >= max(leader.high_watermark, start):
                self.brokers[member].damaged = False
                leader.joining.add(member)
                grown = [*self.state.isr, member]
                self.write(self.state.with_isr(grown, min(leader.min_isr, self.state.width)))
                return

    def report(self, broker: Broker) -> None:
        if broker.is_up and broker.is_admitted and broker.view == self.state and broker.broker_id in self.state.last:
            last_epoch = broker.log[-1] if broker.log else -1
            self.reports[broker.broker_id] = End(broker.incarnation, last_epoch, len(broker.log))

    # --- faults

    def crash(self, broker: Broker) -> None:
        if not broker.is_up:
            return
        damaged = sum(other.damaged for other in self.brokers.values())
        kept = self.random.randint(broker.synced if self.synced else 0, len(broker.log))
        if self.wipes and damaged < self.min_isr - 1 and not broker.damaged and self.random.random() < 0.3:
            kept, broker.damaged = 0, True
        del broker.log[kept:]
        self.end(broker, cleanly=False)

    def stop(self, broker: Broker) -> None:
        if broker.is_up:
            broker.synced = len(broker.log)
            self.end(broker, cleanly=True)
            self.lapse(broker)

    def end(self, broker: Broker, *, cleanly: bool) -> None:
        broker.is_up, broker.is_admitted, broker.stopped_cleanly = False, False, cleanly
        broker.synced = min(broker.synced, len(broker.log))
        broker.high_watermark, broker.view, broker.ends, broker.joining = 0, None, {}, set()

    def start(self, broker: Broker) -> None:
        if broker.is_up:
            return
        broker.is_up = True
        broker.incarnation += 1
        broker.clean = broker.stopped_cleanly
        broker.synced = len(broker.log)
        self.registered[broker.broker_id] = (broker.incarnation, broker.clean)

    def lapse(self, broker: Broker) -> None:
        """Its registration ends; the broker may run on."""
        self.registered.pop(broker.broker_id, None)

    def return_(self, broker: Broker) -> None:
        if broker.is_up:
            self.registered[broker.broker_id] = (broker.incarnation, broker.clean)

    # --- the controller

    def watch(self) -> None:
        self.seen = dict(self.registered)

    def elect(self, *, waited: bool = False, preferred: bool = False, leaving: int = 0) -> None:
        live = [member for member, (incarnation, _) in self.seen.items() if self.admitted[member] == incarnation]
        starts = {
            member: clean and incarnation == self.admitted[member] + 1
            for member, (incarnation, clean) in self.seen.items()
            if self.admitted[member] != incarnation
        }
        ends = {member: end for member, end in self.reports.items() if end.incarnation == self.admitted[member]}
        min_isr = min(self.min_isr, self.state.width)
        rules = Rules(
            live,
            min_isr,
            (leaving,),
            self.drained,
            synced=self.synced,
            ends=ends,
            waited=waited,
            preferred=preferred,
        )
        before = self.state
        after = admit_all(before, rules, starts)
        if after is not before:
            self.check(before, after)
            self.write(after)
        for member in starts:
            if self.registered.get(member) == self.seen[member]:
                self.admitted[member] = self.seen[member][0]
        settled = replace(rules, preferred=False)
        assert next_state(next_state(self.state, settled), settled) == next_state(self.state, settled), "no fixpoint"

    def check(self, before: PartitionState, after: PartitionState) -> None:
        assert after.leader_epoch >= before.leader_epoch
        has_arrived = bool(before.target) and not after.target
        assert (after.leader_epoch > before.leader_epoch) == (after.leader != before.leader or has_arrived)
        assert after.leader == NOBODY or after.leader in after.isr
        assert after.isr or after.elr or after.last, "nobody is remembered"
        if has_arrived:
            self.moves += 1
            assert after.replicas == before.target
            assert len(after.isr) >= min(self.min_isr, before.width, after.width), "too few hold it after a move"
        if after.leader in (before.leader, NOBODY):
            self.elections["nobody"] += after.leader == NOBODY
            return
        kind = next(kind for kind in ("isr", "elr", "last") if after.leader in getattr(before, kind))
        self.elections[kind] += 1
        elected = self.brokers[after.leader]
        if elected.is_up and elected.incarnation == self.admitted[after.leader]:
            held = elected.log[: elected.synced] if self.synced else elected.log
            assert held[: len(self.committed)] == self.committed, f"{after.leader} elected from {kind} without all"

    def write(self, state: PartitionState) -> None:
        self.state = replace(state, revision=self.state.revision + 1)

    # --- time

    def step(self) -> None:
        random = self.random
        broker = self.brokers[random.choice(list(self.brokers))]
        leader = self.brokers.get(self.state.leader, broker)
        plain: list[tuple[int, Callable[[], None]]] = [
            (12, lambda: self.produce(leader)),
            (6, lambda: self.sync(broker)),
            (40, lambda: self.fetch(broker)),
            (20, lambda: self.look(broker)),
            (1, lambda: self.shrink(leader)),
            (12, lambda: self.expand(leader)),
            (4, lambda: self.report(broker)),
            (2, lambda: self.crash(broker)),
            (1, lambda: self.stop(broker)),
            (5, lambda: self.start(broker)),
            (1, lambda: self.lapse(broker)),
            (3, lambda: self.return_(broker)),
            (10, self.watch),
            (8, lambda: self.elect(waited=random.random() < 0.5, preferred=random.random() < 0.1)),
            (1, lambda: self.elect(leaving=broker.broker_id)),
            (1, lambda: self.learn_setting(broker)),
            (0 if self.wipes else 1, self.change_setting),
            (3 if self.spares else 0, self.move),
            (1 if self.spares else 0, lambda: self.drain(broker)),
        ]
        random.choices([event for _, event in plain], [weight for weight, _ in plain])[0]()

    def change_setting(self) -> None:
        self.min_isr = self.random.randint(1, self.width)

    def move(self) -> None:
        """To others, elsewhere while it moves, or back."""
        if self.state.target and self.random.random() < 0.4:
            self.write(self.state.move_to(self.state.origin))
            return
        least = self.width if self.wipes else 1 if self.synced else 2  # one alone that crashes has lost its page cache
        width = self.random.randint(least, self.width)
        live = [member for member, (incarnation, _) in self.seen.items() if self.admitted[member] == incarnation]
        if len(live) >= width:
            self.write(self.state.move_to(self.random.sample(live, width)))

    def drain(self, broker: Broker) -> None:
        self.drained ^= {broker.broker_id}

    def heal(self) -> None:
        """Everybody is there, and everything has happened that must happen in the end."""
        for _ in range(12):
            for broker in self.brokers.values():
                self.start(broker)
                self.return_(broker)
                self.learn_setting(broker)
                self.look(broker)
                self.report(broker)
            self.watch()
            self.elect(waited=True)
            for _ in range(6):
                for broker in self.brokers.values():
                    self.look(broker)
                    self.fetch(broker)
                    self.sync(broker)
                    self.expand(broker)
