"""What the controller does in one term: look at the image, and write what should be otherwise.

Each write expects the controller's key and the partitions as they were seen, and is right whoever makes it. So a term
may end anywhere, and the next one goes on from what it finds. Nothing is remembered but what the image has not heard
yet, and since when something has been so.

A broker that has started is admitted last: when every partition says what its start means, and a fresh snapshot agrees.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

import orjson

from penstock.cluster import keys
from penstock.cluster.election import Rules, admit, admit_all, next_state
from penstock.cluster.fenced_store import AT_ONCE, FencedStore, all_at_once
from penstock.cluster.image import FEATURE_LEVEL, BrokerRecord, Image, TopicEntry
from penstock.cluster.leftovers import Leftovers
from penstock.cluster.placement import extend
from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.observe.logs import get_logger
from penstock.ports.clock import Clock
from penstock.ports.metadata import MetadataConflict, MetadataStore

log_ = get_logger("cluster")
TopicRules = Callable[[TopicEntry, int], tuple[int, bool]]
Place = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    preferred_after_s: float = 60.0
    """How long nothing must have happened before the leaders go back to the brokers that should lead."""
    preferred_at_once: int = 50
    preferred_pause_s: float = 1.0
    last_wait_s: float = 30.0
    """How long the members of a partition's last ISR have, after the first of them, to come back."""
    orphan_after_s: float = 60.0
    """How long the creation of a topic may take."""
    internal_replicas: int = 3
    look_again_s: float = 1.0
    """How often to look without being woken."""
    back_off_s: float = 0.25
    """How long to wait when the store does not answer."""


class Change(NamedTuple):
    before: PartitionState
    after: PartitionState


class _Brokers(NamedTuple):
    """Who is there."""

    live: dict[int, BrokerRecord]
    leaving: frozenset[int]
    cordoned: frozenset[int]
    drained: frozenset[int]
    starting: dict[int, BrokerRecord]
    """Not admitted yet."""
    clean: dict[int, bool]
    """Of each that is starting: whether what it holds can be trusted."""


class Term:
    """One epoch of a controller. `look` is not called again while it runs."""

    def __init__(
        self,
        store: MetadataStore,
        image: Image,
        clock: Clock,
        topic_rules: TopicRules,
        settings: ControllerSettings,
        epoch: int,
    ) -> None:
        self.epoch = epoch
        self._store = FencedStore(store, epoch)
        self._leftovers = Leftovers(self._store, image, settings.orphan_after_s)
        self._image = image
        self._clock = clock
        self._topic_rules = topic_rules
        self._settings = settings
        self._written: dict[Place, PartitionState] = {}
        """What the image may not know yet."""
        self._admitted: dict[int, int] = {}
        self._settled: dict[UUID, tuple[int, dict[int, int]]] = {}
        """Revisions of each topic and its partitions that are as they should be, while no broker comes or goes."""
        self._brokers: object = None
        self._prefer_at = clock.monotonic() + settings.preferred_after_s
        self._waits: dict[Place, float] = {}
        """Partitions that only members of `last` can lead, and since when one of those is there."""

    @property
    def is_held(self) -> bool:
        controller = self._image.controller
        return controller is not None and controller.revision == self.epoch

    async def look(self) -> float:
        """Do what is to be done now; how many seconds nothing will be to do without news.

        Raises:
            Deposed: another term has begun.
            MetadataUnavailable: some of it may not be done, and which is not known.
        """
        now = self._clock.monotonic()
        self._forget_what_is_known()
        brokers = self._who_is_there(now)
        changes = self._changes(brokers, now)
        if changes:
            self._prefer_at = now + self._settings.preferred_after_s
        elif now >= self._prefer_at:
            changes = self._back_to_preferred(brokers, now)
        failed = await self._write(changes)
        admitted = await self._admit(brokers)
        if admitted or len(failed) < len(changes):
            return 0.0
        await self._raise_level()
        await self._leftovers.remove(now)
        return self._rest_s(now)

    def _rest_s(self, now: float) -> float:
        due = [self._prefer_at]
        due += [since + self._settings.last_wait_s for since in self._waits.values()]
        due += self._leftovers.due()
        return min([self._settings.look_again_s, *(at - now for at in due if at > now)])

    # --- what is

    def _who_is_there(self, now: float) -> _Brokers:
        live, starting, clean = {}, {}, {}
        for broker_id, broker in sorted(self._image.brokers.items()):
            admitted = max(self._image.admitted.get(broker_id, 0), self._admitted.get(broker_id, 0))
            if admitted == broker.incarnation:
                live[broker_id] = broker
            else:
                starting[broker_id] = broker
                # A start between that was never admitted may have been an unclean one that nobody has dealt with.
                clean[broker_id] = broker.clean and broker.incarnation == admitted + 1
        leaving = frozenset(broker_id for broker_id, broker in live.items() if broker.leaving)
        brokers = _Brokers(live, leaving, self._image.cordoned(), self._image.drained(), starting, clean)
        if brokers != self._brokers:
            self._brokers = brokers
            self._settled.clear()
            self._prefer_at = now + self._settings.preferred_after_s
        return brokers

    def _forget_what_is_known(self) -> None:
        if self._admitted:  # an id that was forgotten may come again, and begin with its first start
            shown = self._image.admitted
            self._admitted = {each: start for each, start in self._admitted.items() if shown.get(each, 0) < start}
        if self._written:
            stored = ((place, self._image.states.get(place[0], {}).get(place[1])) for place in self._written)
            self._written = {
                place: self._written[place]
                for place, state in stored
                if state is not None and state.revision < self._written[place].revision
            }

    def _known(self, place: Place, stored: PartitionState) -> PartitionState:
        """A partition's state: as in the image, or as this term has written it since."""
        return self._written.get(place, stored) if self._written else stored

    def _unsettled(self, topics: Mapping[UUID, TopicEntry]) -> Iterator[tuple[Place, PartitionState]]:
        """Partitions that may have to change; also of topics that do not exist, or do not yet."""
        for topic_id, states in self._image.states.items():
            topic = topics.get(topic_id)
            at = 0 if topic is None else topic.revision
            known_at, settled = self._settled.get(topic_id, (-1, {}))
            if known_at != at:
                settled = {}
                self._settled[topic_id] = (at, settled)
            for index, stored in states.items():
                if settled.get(index) != stored.revision:
                    yield (topic_id, index), stored

    def _topics(self) -> dict[UUID, TopicEntry]:
        return {topic.record.topic_id: topic for topic in self._image.topics.values()}

    # --- what should be

    def _changes(self, brokers: _Brokers, now: float) -> dict[Place, Change]:
        topics = self._topics()
        rules = _PartitionRules(self._topic_rules, brokers)
        load: Counter[int] = Counter()
        waits: dict[Place, float] = {}
        changes = {}
        for place, stored in self._unsettled(topics):
            topic = topics.get(place[0])
            state = self._known(place, stored)
            if topic is None or place[1] >= topic.record.partitions:
                after = _admitted(state, brokers)
            else:
                found = rules.of(topic, state.width)
                if state.last:
                    found = self._rules_of_last(found, place, state, brokers, now, waits)
                after = admit_all(state, found, brokers.clean)
                if after is state and topic.name in INTERNAL_TOPICS:
                    after = self._grown(state, brokers, load)
            if after is not state:
                changes[place] = Change(state, after)
            elif state is stored and not state.last:
                self._settled[place[0]][1][place[1]] = stored.revision
        self._waits = waits
        return changes

    def _rules_of_last(
        self,
        rules: Rules,
        place: Place,
        state: PartitionState,
        brokers: _Brokers,
        now: float,
        waits: dict[Place, float],
    ) -> Rules:
        since = self._waits.get(place)
        if state.leader != NOBODY:
            since = None
        elif since is None and any(member in brokers.live for member in state.last):
            since = now
        if since is not None:
            waits[place] = since
        ends = {
            broker_id: end
            for broker_id, end in self._image.ends.get(place, {}).items()
            if broker_id in brokers.live and brokers.live[broker_id].incarnation == end.incarnation
        }
        return replace(rules, waited=since is not None and now >= since + self._settings.last_wait_s, ends=ends)

    def _grown(self, state: PartitionState, brokers: _Brokers, load: Counter[int]) -> PartitionState:
        """A partition of an internal topic that was created when fewer brokers were there."""
        unwilling = brokers.leaving | brokers.cordoned
        racks = {broker_id: broker.rack for broker_id, broker in brokers.live.items() if broker_id not in unwilling}
        wanted = min(self._settings.internal_replicas, len(racks), len(state.replicas) + 1)
        if (
            len(state.replicas) >= wanted
            or state.target
            or state.leader not in brokers.live
            or len(state.isr) < len(state.replicas)
        ):
            return state  # one after the other: each that is not in sync yet may be needed to acknowledge anything
        if not load:
            load.update(member for _, _, other in self._image.partitions() for member in other.replicas)
        replicas = extend(state.replicas, racks, wanted, load)
        load.update(replicas[len(state.replicas) :])
        return replace(state, replicas=replicas) if replicas != state.replicas else state

    def _back_to_preferred(self, brokers: _Brokers, now: float) -> dict[Place, Change]:
        rules = _PartitionRules(self._topic_rules, brokers, preferred=True)
        changes: dict[Place, Change] = {}
        self._prefer_at = now + self._settings.preferred_after_s
        for topic, index, stored in self._image.partitions():
            place = (topic.record.topic_id, index)
            state = self._known(place, stored)
            after = next_state(state, rules.of(topic, state.width))
            if after is not state:
                changes[place] = Change(state, after)
            if len(changes) == self._settings.preferred_at_once:
                self._prefer_at = now + self._settings.preferred_pause_s
                break
        return changes

    # --- making it so

    async def _write(self, changes: Mapping[Place, Change]) -> list[Place]:
        """Write states, all batches at once; those that were not as they were seen are returned."""
        places = list(changes)
        batches = [places[at : at + AT_ONCE] for at in range(0, len(places), AT_ONCE)]
        failed = await all_at_once(self._write_batch({place: changes[place] for place in batch}) for batch in batches)
        if changes:
            elected = sum(after.leader not in (before.leader, NOBODY) for before, after in changes.values())
            unled = sum(after.leader == NOBODY for _, after in changes.values())
            log_.info("partitions changed", partitions=len(changes), elected=elected, without_leader=unled)
        return [place for batch in failed for place in batch]

    async def _write_batch(self, changes: dict[Place, Change]) -> list[Place]:
        """One transaction; again without those that somebody else has changed."""
        failed = []
        places = {keys.partition_key(*place): place for place in changes}
        while places:
            try:
                revision = await self._store.transact(
                    expect={key: changes[place].before.revision for key, place in places.items()},
                    put={key: changes[place].after.encode() for key, place in places.items()},
                )
            except MetadataConflict as conflict:
                failed.append(places.pop(conflict.key))
                continue
            for place in places.values():
                self._written[place] = replace(changes[place].after, revision=revision)
            break
        return failed

    async def _admit(self, brokers: _Brokers) -> int:
        """Admit those whose start is written everywhere; how many."""
        starts = dict(brokers.starting)
        if not starts:
            return 0
        for entry in (await self._store.snapshot(keys.PARTITIONS)).entries:
            state = PartitionState.decode(entry.value, entry.revision)
            for broker_id in [replica for replica in state.replicas if replica in starts]:
                if admit(state, broker_id, brokers.clean[broker_id]) is not state:
                    del starts[broker_id]
        admitted = await all_at_once(
            self._admit_one(broker, brokers.clean[broker_id]) for broker_id, broker in starts.items()
        )
        return sum(admitted)

    async def _raise_level(self) -> None:
        """Once every broker of the cluster is there and can: for good, as brokers rely on it from then on."""
        image = self._image
        if image.level >= FEATURE_LEVEL:
            return
        able = {
            broker_id
            for broker_id, broker in image.brokers.items()
            if broker.level >= FEATURE_LEVEL and image.is_trusted(broker, FEATURE_LEVEL)
        }
        if not able or not image.members.keys() <= able | image.strangers.keys():
            return
        put = {keys.FEATURES: orjson.dumps({"level": FEATURE_LEVEL})}
        try:
            await self._store.transact(expect={keys.FEATURES: image.revision_of(keys.FEATURES)}, put=put)
        except MetadataConflict:
            return  # another controller was quicker
        log_.info("every broker can; the feature level is raised", level=FEATURE_LEVEL)

    async def _admit_one(self, broker: BrokerRecord, clean: bool) -> bool:
        broker_id = broker.broker_id
        try:
            await self._store.transact(
                expect={keys.broker_key(broker_id): broker.revision},
                put={keys.admitted_key(broker_id): orjson.dumps({"incarnation": broker.incarnation})},
            )
        except MetadataConflict:
            return False  # it has registered again, or is gone
        self._admitted[broker_id] = broker.incarnation
        log_.info("broker admitted", broker=broker_id, incarnation=broker.incarnation, clean=clean)
        return True


class _PartitionRules:
    """The rules of partitions at one look; the same for all of a topic that have as many replicas."""

    def __init__(self, topic_rules: TopicRules, brokers: _Brokers, preferred: bool = False) -> None:
        self._topic_rules = topic_rules
        self._brokers = brokers
        self._preferred = preferred
        self._made: dict[tuple[str, int], Rules] = {}

    def of(self, topic: TopicEntry, replicas: int) -> Rules:
        made = self._made.get((topic.name, replicas))
        if made is None:
            min_isr, synced = self._topic_rules(topic, replicas)
            made = self._made[topic.name, replicas] = Rules(
                live=self._brokers.live,
                min_isr=max(1, min(min_isr, replicas)),
                leaving=self._brokers.leaving,
                drained=self._brokers.drained,
                synced=synced,
                preferred=self._preferred,
            )
        return made


def _admitted(state: PartitionState, brokers: _Brokers) -> PartitionState:
    for broker_id, clean in brokers.clean.items():
        state = admit(state, broker_id, clean)
    return state
