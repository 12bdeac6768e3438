"""Topics of a cluster: created, grown, altered and deleted by any broker, each by compare-and-swap in the store.

`topics/{name}` makes a topic exist, so the keys of its partitions are written before it, and those of partitions that
are added before its record says so. Small topics need one transaction. Of larger ones a crash may leave partitions of
no topic behind, which the controller removes, the first one first. A step of growth expects the topic as it was, so
that two brokers that grow one topic cannot write the partitions of each other after one has won.

The store may not say whether a change was made. Then the change is looked for, and if it cannot be found the caller is
told so; it may still come into effect.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

from penstock.cluster import keys
from penstock.cluster.image import BrokerRecord, DeletedTopic, Image
from penstock.cluster.placement import extend, place
from penstock.cluster.watcher import Watcher
from penstock.engine.attached import attached_topic
from penstock.engine.catalogue import NewTopic
from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS
from penstock.engine.coordination.registry import REGISTERED
from penstock.engine.internal_settings import altered_settings, topic_config
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.engine.topic_names import check_name
from penstock.engine.topics import (
    MAX_PARTITIONS,
    QueueSettings,
    Topic,
    TopicRecord,
    Topics,
    altered_queues,
    check_count,
    check_own,
)
from penstock.errors import Code, PenstockError
from penstock.ports.metadata import Entry, MetadataConflict, MetadataStore, MetadataUnavailable
from penstock.ports.randomness import Randomness, new_uuid

_AT_ONCE = 98
"""Partitions to a transaction, which may have 100 keys: the topic, and one that is expected or noted, beside them."""
_EFFECT_S = 30.0


class ClusterCatalogue:
    """See the module's text; the verbs are those of `engine.catalogue.Catalogue`.

    They return when the topics of this broker's engine show the change, which is looked at whenever the image changes;
    the engine calls `watcher.wake` when it has done something later than that.

    Args:
        topics: those of this broker's engine.
        defaults: the broker's own defaults for topic settings.
        default_partitions: of a topic whose creator does not say.
        internal_partitions: of each internal topic.
        default_replication: of a topic whose creator does not say, if there are as many brokers, or were before some
            went down.
    """

    def __init__(
        self,
        *,
        store: MetadataStore,
        watcher: Watcher,
        image: Image,
        topics: Topics,
        randomness: Randomness,
        defaults: Mapping[str, str],
        default_partitions: int,
        internal_partitions: int,
        default_replication: int = 3,
    ) -> None:
        self._store = store
        self._watcher = watcher
        self._image = image
        self._topics = topics
        self._randomness = randomness
        self._defaults = defaults
        self._default_partitions = default_partitions
        self._internal_partitions = internal_partitions
        self._default_replication = default_replication

    # --- creation

    async def internal_topic(self, name: str) -> Topic:
        try:
            return await self.create_topic(
                NewTopic(name, self._internal_partitions, settings=REGISTERED[name].settings)
            )
        except PenstockError as error:
            if error.code is Code.TOPIC_EXISTS:  # somebody else was quicker
                await self._watcher.until(lambda: self._topics.get(name) is not None, _EFFECT_S)
                topic = self._topics.get(name)
                if topic is not None:
                    return topic
            raise PenstockError(Code.COORDINATOR_NOT_AVAILABLE, f"cannot create {name}: {error}") from error

    async def create_topic(self, new: NewTopic, *, validate_only: bool = False) -> Topic:
        check_name(new.name)
        try:
            if await self._store.get(keys.TOPICS + new.name) is not None:
                raise _exists(new.name)
            await self._know_brokers()
        except MetadataUnavailable as error:
            raise self._unavailable(f"topic {new.name!r} was not created", error) from error
        count = new.partitions if new.assignment is None else len(new.assignment)
        if count == -1:
            count = self._default_partitions
        check_count(new.name, count, 0)
        states = self._place(new.name, count, new.replication, new.assignment)
        settings = altered_settings(new.name, {}, lambda _: new.settings or {})
        record = TopicRecord(new_uuid(self._randomness), count, settings, 0)
        config = topic_config(new.name, record.settings, self._defaults)
        if validate_only:
            return Topic(new.name, record.topic_id, config, [])
        revision = await self._create(new.name, record, states)
        return await self._shown(new.name, record, revision)

    async def _create(self, name: str, record: TopicRecord, states: Sequence[PartitionState]) -> int:
        """Make a topic; the revision at which it is there."""
        values = {keys.partition_key(record.topic_id, index): state.encode() for index, state in enumerate(states)}
        chunks = _chunks(values)
        first: dict[str, int] = {}
        try:
            for chunk in chunks[:-1]:
                revision = await self._store.transact(put={key: values[key] for key in chunk})
                first = first or {chunk[0]: revision}
            # The first partition is put again, so that whoever is about to remove it as an orphan cannot.
            return await self._store.transact(
                expect={keys.TOPICS + name: 0} | first,
                put={keys.TOPICS + name: record.encode()} | {key: values[key] for key in (*first, *chunks[-1])},
            )
        except MetadataConflict as conflict:
            with suppress(MetadataUnavailable):
                await self._find_or_undo(name, record.topic_id, chunks)
            if conflict.key == keys.TOPICS + name:
                raise _exists(name) from None
            what = f"topic {name!r} was not created: brokers came or went meanwhile"
            raise PenstockError(Code.NOT_AVAILABLE, what, help="create it again") from None
        except MetadataUnavailable as error:
            with suppress(MetadataUnavailable):
                found = await self._find_or_undo(name, record.topic_id, chunks)
                if found:
                    return found
            raise self._unavailable(f"topic {name!r} may or may not have been created", error) from error
        except PenstockError:
            with suppress(MetadataUnavailable):
                await self._find_or_undo(name, record.topic_id, chunks)
            raise

    async def _find_or_undo(self, name: str, topic_id: UUID, chunks: Sequence[Sequence[str]]) -> int:
        """The revision of a topic that was made although nobody said so; or 0, and its partitions are taken away.

        What makes a topic of several chunks expects the first partition, so it cannot come into effect after that.
        """
        while True:
            entry = await self._store.get(keys.TOPICS + name)
            if entry is not None and TopicRecord.decode(entry.value).topic_id == topic_id:
                return entry.revision
            if len(chunks) == 1:
                return 0  # all or nothing
            try:
                at = entry.revision if entry is not None else 0
                await self._store.transact(expect={keys.TOPICS + name: at}, delete=chunks[0])
            except MetadataConflict:
                continue
            for chunk in chunks[1:]:
                await self._store.transact(delete=chunk)
            return 0

    # --- placement

    async def _know_brokers(self) -> None:
        """Know of every broker that may have said that it is ready: it may have been admitted a moment ago."""
        newest = [entry.revision for key in (keys.ADMITTED, keys.BROKERS) for entry in await self._store.list(key)]
        await self._watcher.until(lambda: self._image.revision >= max(newest, default=0), _EFFECT_S)

    def _place(
        self, name: str, count: int, replication: int, assignment: Sequence[Sequence[int]] | None
    ) -> list[PartitionState]:
        """New partitions, each led by the first of its replicas that is there."""
        live = self._image.live()
        if not live:
            raise PenstockError(
                Code.NOT_AVAILABLE,
                f"no broker can take partitions of {name!r}: the controller has admitted none yet; try again",
            )
        load = Counter(member for _, _, state in self._image.partitions() for member in state.replicas)
        if assignment is not None:
            self._check_assignment(name, count, replication, assignment, live)
            chosen = [tuple(members) for members in assignment]
        else:
            cordoned = self._image.cordoned()
            racks = {broker_id: broker.rack for broker_id, broker in live.items() if broker_id not in cordoned}
            wanted, absent = replication, {}
            if replication == -1:
                wanted, absent = self._default_replication, self._absent(cordoned)
                replication = min(wanted, len(racks) or 1)
            if replication > len(racks) and cordoned:
                raise PenstockError(
                    Code.INVALID_REPLICATION,
                    f"{replication} replicas of each partition are asked for; of {len(live)} brokers "
                    f"{len(live) - len(racks)} take no new ones (cordoned: {', '.join(map(str, sorted(cordoned)))})",
                    help="ask for fewer, or let one take replicas again with 'penstock cluster uncordon'",
                )
            chosen = place(racks, count, replication, load, self._randomness.getrandbits(16))
            for index, members in enumerate(chosen):
                chosen[index] = extend(members, absent, wanted, load, racks)
                load.update(chosen[index][len(members) :])
            load.subtract(member for members in chosen for member in members if member in absent)
        if name not in INTERNAL_TOPICS:
            self._check_limit(name, chosen)
        return [_new_partition(members, live) for members in chosen]

    def _check_limit(self, name: str, chosen: Sequence[Sequence[int]]) -> None:
        new = Counter(member for members in chosen for member in members)
        there = Counter(
            member
            for topic, _, state in self._image.partitions()
            if topic.name not in INTERNAL_TOPICS
            for member in state.replicas
        )
        for member in sorted(new):
            if there[member] + new[member] > MAX_PARTITIONS:
                raise PenstockError(
                    Code.LIMIT_EXCEEDED,
                    f"{name!r} with {len(chosen)} new partitions would pass the limit of {MAX_PARTITIONS} "
                    f"on broker {member}",
                )

    def _absent(self, cordoned: Collection[int]) -> dict[int, str | None]:
        """Brokers that are down now, with their racks: a topic that is made meanwhile has replicas there as well."""
        known = self._image.departed
        return {
            broker_id: known[broker_id].rack if broker_id in known else None
            for broker_id in self._image.members
            if not self._image.is_live(broker_id)
            and broker_id not in cordoned
            and broker_id not in self._image.strangers
        }

    def _check_assignment(
        self,
        name: str,
        count: int,
        replication: int,
        assignment: Sequence[Sequence[int]],
        live: Mapping[int, BrokerRecord],
    ) -> None:
        width = replication if replication != -1 or not assignment else len(assignment[0])
        if len(assignment) != count:
            raise _bad_assignment(name, f"it is for {len(assignment)} partitions, not {count}")
        for index, members in enumerate(assignment):
            able = self._image.members.keys() - self._image.strangers.keys()
            unknown = sorted(set(members) - able)
            if unknown:
                known = ", ".join(map(str, sorted(able)))
                raise _bad_assignment(name, f"partition {index} names unknown broker {unknown[0]}; known: {known}")
            if len(set(members)) < len(members):
                raise _bad_assignment(name, f"partition {index} names a broker twice: {list(members)}")
            if not members or len(members) != width:
                raise _bad_assignment(name, f"partition {index} has {len(members)} replicas, others {width}")
            if live.keys().isdisjoint(members):
                raise _bad_assignment(name, f"partition {index}: none of the brokers {list(members)} is there")

    # --- change

    async def create_partitions(
        self,
        topic: Topic,
        count: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        check_own(topic.name, "cannot grow: what is in it is found by the number of its partitions")
        try:
            while True:
                stored = await self._stored(topic)
                record = TopicRecord.decode(stored.value)
                check_count(topic.name, count, record.partitions)
                there = await self._store.list(f"{keys.PARTITIONS}{topic.topic_id}/")
                replication = len(PartitionState.decode(there[0].value, 0).replicas) if there else -1
                await self._know_brokers()
                states = self._place(topic.name, count - record.partitions, replication, assignment)
                if validate_only:
                    return
                grown = replace(record, partitions=count)
                try:
                    revision = await self._grow(stored, grown, states, {entry.key: entry.revision for entry in there})
                except MetadataConflict:
                    continue
                break
        except MetadataUnavailable as error:
            maybe = f"topic {topic.name!r} may or may not have grown to {count} partitions"
            entry = await self._stored_after_all(topic, maybe, error)
            if entry is None or TopicRecord.decode(entry.value).partitions != count:
                raise self._unavailable(maybe, error) from error
            grown, revision = TopicRecord.decode(entry.value), entry.revision
        await self._shown(topic.name, grown, revision)

    async def _grow(
        self, stored: Entry, grown: TopicRecord, states: Sequence[PartitionState], there: Mapping[str, int]
    ) -> int:
        first = grown.partitions - len(states)
        values = {keys.partition_key(grown.topic_id, first + at): state.encode() for at, state in enumerate(states)}
        chunks = _chunks(values)
        for number, chunk in enumerate(chunks, 1):
            put = {key: values[key] for key in chunk}
            if number == len(chunks):
                put[stored.key] = grown.encode()
            # What is there is left from a growth that was cut short.
            expect = {stored.key: stored.revision} | {key: there.get(key, 0) for key in chunk}
            revision = await self._store.transact(expect=expect, put=put)
        return revision

    async def alter_topic(
        self, topic: Topic, alter: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool = False
    ) -> None:
        def change(record: TopicRecord) -> TopicRecord:
            settings = altered_settings(topic.name, record.settings, alter)
            topic_config(topic.name, settings, self._defaults)
            return replace(record, settings=settings)

        maybe = f"topic {topic.name!r} may or may not have new settings"
        record, revision = await self._change(
            topic, change, lambda record: record.settings, maybe, validate_only=validate_only
        )
        if validate_only:
            return

        def is_acting() -> bool:
            entry = self._image.topics.get(topic.name)
            shown = self._topics.get_by_id(topic.topic_id)
            overtaken = self._image.revision >= revision and (entry is None or entry.revision > revision)
            return shown is None or shown.config.given == record.settings or overtaken

        await self._until(is_acting, f"topic {topic.name!r} has new settings, but this broker does not go by them yet")

    async def alter_queues(self, topic: Topic, alter: Callable[[QueueSettings], QueueSettings]) -> None:
        self._image.check_attaches(f"topic {topic.name!r} can have no queues")

        def change(record: TopicRecord) -> TopicRecord:
            return replace(record, queues=altered_queues(topic.name, record.queues, alter))

        maybe = f"the queues of topic {topic.name!r} may or may not be changed"
        _, revision = await self._change(topic, change, lambda record: record.queues, maybe)

        def is_acting() -> bool:
            entry = self._image.topics.get(topic.name)
            shown = self._topics.get_by_id(topic.topic_id)
            if self._image.revision < revision:
                return False
            return entry is None or shown is None or shown.queues == entry.record.queues

        await self._until(
            is_acting, f"the queues of topic {topic.name!r} are changed, but this broker does not go by them yet"
        )

    async def attach(self, topic: Topic, kind: str, settings: Mapping[str, str]) -> None:
        attached_topic(topic, kind, settings)
        self._image.check_attaches(f"nothing can be attached to {topic.name!r}")
        try:
            while True:
                stored = await self._stored(topic)
                record = TopicRecord.decode(stored.value)
                if kind in record.attached:
                    break
                record = replace(record, attached={**record.attached, kind: dict(settings)})
                with suppress(MetadataConflict):
                    await self._store.transact(expect={stored.key: stored.revision}, put={stored.key: record.encode()})
                    break
        except MetadataUnavailable as error:
            maybe = f"a log of kind {kind!r} may or may not have been attached to {topic.name!r}"
            raise self._unavailable(maybe, error) from error

        def is_attached() -> bool:
            shown = self._topics.get_by_id(topic.topic_id)
            return shown is None or (
                kind in shown.attached and not any(partition.lacks_attached for partition in shown.partitions)
            )

        await self._until(is_attached, f"a log of kind {kind!r} is attached to {topic.name!r}, but not here yet")

    async def delete_topic(self, topic: Topic) -> None:
        check_own(topic.name, "cannot be deleted: groups and transactions are kept in it")
        try:
            while True:
                stored = await self._stored(topic)
                there = await self._store.list(f"{keys.PARTITIONS}{topic.topic_id}/")
                ends = await self._store.list(f"{keys.ENDS}{topic.topic_id}/")
                chunks = _chunks(entry.key for entry in (*there, *ends))
                holders = {member for entry in there for member in PartitionState.decode(entry.value, 0).replicas}
                note = DeletedTopic(topic.name, tuple(sorted(holders))).encode()
                try:
                    await self._store.transact(
                        expect={stored.key: stored.revision},
                        put={f"{keys.DELETED}{topic.topic_id}": note},
                        delete=[stored.key, *chunks[0]],
                    )
                except MetadataConflict:
                    continue
                for chunk in chunks[1:]:
                    await self._store.transact(delete=chunk)
                break
        except MetadataUnavailable as error:
            maybe = f"topic {topic.name!r} may or may not have been deleted"
            if await self._stored_after_all(topic, maybe, error) is not None:
                raise self._unavailable(maybe, error) from error
        gone = f"topic {topic.name!r} is deleted, but this broker still shows it"
        await self._until(lambda: self._topics.get_by_id(topic.topic_id) is None, gone)

    # --- steps

    async def _change(
        self,
        topic: Topic,
        change: Callable[[TopicRecord], TopicRecord],
        part: Callable[[TopicRecord], object],
        maybe: str,
        *,
        validate_only: bool = False,
    ) -> tuple[TopicRecord, int]:
        """Change a topic's record, tried again when others are quicker; the record, and its revision.

        Args:
            part: what of it is changed, which is looked for if the store does not say whether it was.
            maybe: what to say if it is not found.
        """
        wanted: object = None
        try:
            while True:
                stored = await self._stored(topic)
                before = TopicRecord.decode(stored.value)
                record = change(before)
                wanted = part(record)
                if validate_only or wanted == part(before):
                    return record, stored.revision
                with suppress(MetadataConflict):
                    revision = await self._store.transact(
                        expect={stored.key: stored.revision}, put={stored.key: record.encode()}
                    )
                    return record, revision
        except MetadataUnavailable as error:
            entry = await self._stored_after_all(topic, maybe, error)
            if entry is None or part(record := TopicRecord.decode(entry.value)) != wanted:
                raise self._unavailable(maybe, error) from error
            return record, entry.revision

    async def _stored(self, topic: Topic) -> Entry:
        """A topic as the store has it. Raises PenstockError UNKNOWN_TOPIC."""
        entry = await self._store.get(keys.TOPICS + topic.name)
        if entry is None or TopicRecord.decode(entry.value).topic_id != topic.topic_id:
            raise PenstockError(Code.UNKNOWN_TOPIC, f"topic {topic.name!r} is unknown")
        return entry

    async def _stored_after_all(self, topic: Topic, maybe: str, error: MetadataUnavailable) -> Entry | None:
        """A topic as the store has it after a change nobody answered; None: it is gone. Raises PenstockError."""
        try:
            return await self._stored(topic)
        except PenstockError:
            return None
        except MetadataUnavailable:
            raise self._unavailable(maybe, error) from error

    async def _shown(self, name: str, record: TopicRecord, revision: int) -> Topic:
        """The topic, when this broker's engine has its partitions and knows who leads them."""

        def is_gone() -> bool:
            entry = self._image.topics.get(name)
            return self._image.revision >= revision and (entry is None or entry.record.topic_id != record.topic_id)

        def is_shown() -> bool:
            topic = self._topics.get_by_id(record.topic_id)
            if topic is None or len(topic.partitions) < record.partitions:
                return is_gone()
            return all(partition.state.leader != NOBODY for partition in topic.partitions) or is_gone()

        await self._until(is_shown, f"topic {name!r} is there, but this broker has not all of its partitions yet")
        topic = self._topics.get_by_id(record.topic_id)
        if topic is None:
            raise PenstockError(Code.UNKNOWN_TOPIC, f"topic {name!r} was deleted as soon as it was there")
        return topic

    async def _until(self, met: Callable[[], bool], otherwise: str) -> None:
        if not await self._watcher.until(met, _EFFECT_S):
            raise PenstockError(Code.TIMED_OUT, f"{otherwise} after {_EFFECT_S:g} s; ask again")

    def _unavailable(self, what: str, error: MetadataUnavailable) -> PenstockError:
        return PenstockError(
            Code.NOT_AVAILABLE,
            f"{what}: {self._watcher.name} did not answer ({error})",
            help="Try again when the store answers, and look first.",
        )


def _chunks(names: Iterable[str]) -> list[list[str]]:
    """At least one, of as many as fit into a transaction each."""
    left = list(names)
    return [left[at : at + _AT_ONCE] for at in range(0, len(left), _AT_ONCE)] or [[]]


def _new_partition(members: tuple[int, ...], live: Mapping[int, BrokerRecord]) -> PartitionState:
    isr = tuple(member for member in members if member in live)
    staying = (member for member in isr if not live[member].leaving)
    return PartitionState(members, isr, next(staying, isr[0]), 0)


def _exists(name: str) -> PenstockError:
    return PenstockError(Code.TOPIC_EXISTS, f"topic {name!r} exists already")


def _bad_assignment(name: str, why: str) -> PenstockError:
    return PenstockError(Code.INVALID_ASSIGNMENT, f"assignment of topic {name!r}: {why}")
