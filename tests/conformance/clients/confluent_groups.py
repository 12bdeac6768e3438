"""confluent-kafka's consumers as members of groups, classic and of the newer protocol, and its admin side of groups."""

from collections.abc import Mapping

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from .client import DEADLINE_S, ClientError
from .confluent import QUIET, settle
from .groups import (
    HEARTBEAT_MS,
    POLL_S,
    SESSION_MS,
    Committed,
    Described,
    GroupAdmin,
    Listing,
    Options,
    Place,
    PolledMember,
    Seen,
)

_NO_OFFSET = -1001


class ConfluentMember(PolledMember):
    def __init__(self, bootstrap: str, options: Options, *, protocol: str = "classic", assignor: str = "range") -> None:
        self._config = {"group.protocol": protocol}
        if protocol == "classic":
            self._config |= {
                "partition.assignment.strategy": assignor,
                "session.timeout.ms": str(SESSION_MS),
                "heartbeat.interval.ms": str(HEARTBEAT_MS),
            }
        super().__init__(bootstrap, options)

    def _open(self) -> None:
        options = self.options
        more = {} if options.instance is None else {"group.instance.id": options.instance}
        if options.auto_commit_ms is not None:
            more["auto.commit.interval.ms"] = str(options.auto_commit_ms)
        self._consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": options.group,
                "client.id": options.client_id,
                "enable.auto.commit": options.auto_commit_ms is not None,
                "auto.offset.reset": options.reset,
                "isolation.level": options.isolation,
                "fetch.wait.max.ms": 100,
                "topic.metadata.refresh.interval.ms": 1000,
                **self._config,
                **more,
            },
            logger=QUIET,
        )
        if options.places:
            self._consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in options.places])
            return
        topics = list(options.topics) if options.pattern is None else [options.pattern]
        self._consumer.subscribe(
            topics,
            on_assign=lambda _, places: self._note("assigned", map(_place, places)),
            on_revoke=lambda _, places: self._note("revoked", map(_place, places)),
            on_lost=lambda _, places: self._note("lost", map(_place, places)),
        )

    def _poll(self) -> None:
        for message in self._consumer.consume(500, POLL_S):
            error = message.error()
            if error is not None:
                if error.retriable() or error.code() == KafkaError._PARTITION_EOF:
                    continue
                raise ClientError(error.code(), error.str())
            place = (str(message.topic()), int(message.partition()))
            self._received.append(Seen(place, message.offset(), message.value()))
        self._assigned = frozenset(map(_place, self._consumer.assignment()))

    def _close(self) -> None:
        self._consumer.close()

    def _commit(self, offsets: Mapping[Place, Committed] | None) -> None:
        try:
            if offsets is None:
                done = self._consumer.commit(asynchronous=False)
            else:
                wanted = [TopicPartition(*place, each.offset, each.metadata) for place, each in offsets.items()]
                done = self._consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as failure:
            if failure.args[0].code() == KafkaError._NO_OFFSET and offsets is None:
                return
            raise ClientError(failure.args[0].code(), str(failure)) from failure
        for each in done:
            if each.error is not None:
                raise ClientError(each.error.code(), each.error.str())

    def _committed(self, places: list[Place]) -> dict[Place, Committed]:
        try:
            found = self._consumer.committed([TopicPartition(*each) for each in places], timeout=DEADLINE_S)
        except KafkaException as failure:
            raise ClientError(failure.args[0].code(), str(failure)) from failure
        return _offsets(found)

    def _seek(self, place: Place, offset: int) -> None:
        self._consumer.seek(TopicPartition(*place, offset))

    def group_metadata(self) -> object:
        """What a transactional producer needs to commit this member's offsets."""
        return self.start(self._consumer.consumer_group_metadata).result(DEADLINE_S)


def _place(found: TopicPartition) -> Place:
    return found.topic, found.partition


def _offsets(found: list[TopicPartition]) -> dict[Place, Committed]:
    return {_place(each): Committed(each.offset, each.metadata or "") for each in _committed(found)}


def _committed(found: list[TopicPartition]) -> list[TopicPartition]:
    for each in found:
        if each.error is not None:
            raise ClientError(each.error.code(), each.error.str())
    return [each for each in found if each.offset != _NO_OFFSET]


class ConfluentGroupAdmin(GroupAdmin):
    name = "confluent"
    can_delete_offsets = False
    # It reads on behind metadata that no byte 0 ends, as its own always does: even a look at it may fail.
    shows_metadata = False

    def __init__(self, bootstrap: str) -> None:
        self._client = AdminClient({"bootstrap.servers": bootstrap}, logger=QUIET)

    def groups(self) -> dict[str, Listing]:
        found = settle(self._client.list_consumer_groups(request_timeout=DEADLINE_S))
        assert not found.errors, found.errors
        return {each.group_id: Listing(_words(each.state.name), each.type.name, None) for each in found.valid}

    def describe(self, group: str) -> Described:
        found = settle(self._client.describe_consumer_groups([group], request_timeout=DEADLINE_S)[group])
        members = tuple(
            (each.client_id, each.group_instance_id, frozenset(map(_place, each.assignment.topic_partitions)))
            for each in found.members
        )
        return Described(_words(found.state.name), found.partition_assignor, members)

    def offsets(self, group: str, *places: Place) -> dict[Place, Committed]:
        wanted = [TopicPartition(*each) for each in places] or None
        request = [ConsumerGroupTopicPartitions(group, wanted)]
        found = settle(self._client.list_consumer_group_offsets(request, request_timeout=DEADLINE_S)[group])
        return {_place(each): Committed(each.offset) for each in _committed(found.topic_partitions)}

    def delete(self, group: str) -> None:
        settle(self._client.delete_consumer_groups([group], request_timeout=DEADLINE_S)[group])

    def alter_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        wanted = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        request = [ConsumerGroupTopicPartitions(group, wanted)]
        found = settle(self._client.alter_consumer_group_offsets(request, request_timeout=DEADLINE_S)[group])
        _committed(found.topic_partitions)


def _words(name: str) -> str:
    """Kafka's own spelling of a state: `PREPARING_REBALANCING` is `PreparingRebalance`."""
    return "".join(each.capitalize() for each in name.split("_")).replace("Rebalancing", "Rebalance")
