"""kafka-python's consumers as members of groups, and its admin side of groups."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka import errors as kafka_errors
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from .client import DEADLINE_S, NO_MATCH, ClientError
from .groups import (
    HEARTBEAT_MS,
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

_TIMEOUT_MS = int(DEADLINE_S * 1000)
# A join that outlasts a poll is given up and begun anew, which may leave the member without heartbeats for good.
_POLL_MS, _JOIN_MS = 600, 1500
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


def attempt(work: Callable[..., Any]) -> Any:
    """The work's result. Raises `ClientError`."""
    try:
        return work()
    except KafkaError as failure:
        raise ClientError(getattr(failure, "errno", NO_MATCH), repr(failure)) from failure


class KafkaPythonMember(PolledMember):
    def __init__(self, bootstrap: str, options: Options, *, assignor: str = "range") -> None:
        self._assignor = ASSIGNORS[assignor]
        super().__init__(bootstrap, options)

    def _open(self) -> None:
        options = self.options
        self._consumer = KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=options.group,
            client_id=options.client_id,
            group_instance_id=options.instance,
            enable_auto_commit=options.auto_commit_ms is not None,
            auto_commit_interval_ms=options.auto_commit_ms or 5000,
            auto_offset_reset=options.reset,
            isolation_level=options.isolation,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=100,
            metadata_max_age_ms=1000,
            partition_assignment_strategy=[self._assignor],
        )
        if options.places:
            places = [TopicPartition(*each) for each in options.places]
            self._consumer.assign(places)
            self._consumer.seek_to_beginning(*places)
            self._assigned = frozenset(options.places)
        elif options.pattern is not None:
            self._consumer.subscribe(pattern=options.pattern, listener=_Listener(self))
        else:
            self._consumer.subscribe(options.topics, listener=_Listener(self))

    def _poll(self) -> None:
        for place, records in self._consumer.poll(_POLL_MS if self._assigned else _JOIN_MS).items():
            self._received += [Seen(tuple(place), each.offset, each.value) for each in records]

    def _close(self) -> None:
        self._consumer.close(timeout_ms=_TIMEOUT_MS)

    def _commit(self, offsets: Mapping[Place, Committed] | None) -> None:
        wanted = offsets and {
            TopicPartition(*place): OffsetAndMetadata(each.offset, each.metadata, -1) for place, each in offsets.items()
        }
        attempt(lambda: self._consumer.commit(wanted, timeout_ms=_TIMEOUT_MS))

    def _committed(self, places: list[Place]) -> dict[Place, Committed]:
        found = {
            each: attempt(
                lambda each=each: self._consumer.committed(TopicPartition(*each), metadata=True, timeout_ms=_TIMEOUT_MS)
            )
            for each in places
        }
        return {place: Committed(each.offset, each.metadata) for place, each in found.items() if each is not None}

    def _seek(self, place: Place, offset: int) -> None:
        self._consumer.seek(TopicPartition(*place), offset)

    def group_metadata(self) -> object:
        """What a transactional producer needs to commit this member's offsets."""
        return self._consumer.group_metadata()


class _Listener(ConsumerRebalanceListener):
    def __init__(self, member: KafkaPythonMember) -> None:
        self._member = member

    # The assignment is kept here rather than asked for after a poll: a poll of a new member takes long.
    def on_partitions_assigned(self, assigned: Any) -> None:
        self._member._note("assigned", map(tuple, assigned))
        self._member._assigned |= frozenset(map(tuple, assigned))

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._member._note("revoked", map(tuple, revoked))
        self._member._assigned -= frozenset(map(tuple, revoked))

    def on_partitions_lost(self, lost: Any) -> None:
        self._member._note("lost", map(tuple, lost))
        self._member._assigned -= frozenset(map(tuple, lost))


class KafkaPythonGroupAdmin(GroupAdmin):
    name = "kafka-python"
    new_protocol = False

    def __init__(self, bootstrap: str) -> None:
        self._client = KafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=_TIMEOUT_MS)

    def groups(self) -> dict[str, Listing]:
        return {
            each["group_id"]: Listing(
                each.get("group_state"), (each.get("group_type") or "").upper(), each["protocol_type"]
            )
            for each in attempt(self._client.list_groups)
        }

    def describe(self, group: str) -> Described:
        found = attempt(lambda: self._client.describe_groups([group]))[group]
        if found["error"]:
            code = re.match(r"\[Error (\d+)\]", found["error"])
            raise ClientError(int(code.group(1)) if code else NO_MATCH, found["error"])
        members = tuple(
            (each["client_id"], each["group_instance_id"], _assignment(each["member_assignment"]))
            for each in found["members"]
        )
        return Described(found["group_state"], found["protocol_data"], members)

    def offsets(self, group: str, *places: Place) -> dict[Place, Committed]:
        wanted = {group: [TopicPartition(*each) for each in places] or None}
        found = attempt(lambda: self._client.list_group_offsets(wanted))[group]
        return {
            tuple(place): Committed(each.offset, each.metadata) for place, each in found.items() if each.offset >= 0
        }

    def delete(self, group: str) -> None:
        name = attempt(lambda: self._client.delete_groups([group]))[group]
        if name != "OK":
            raise ClientError(getattr(kafka_errors, name).errno, name)

    def alter_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        wanted = {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()}
        _raise_first(attempt(lambda: self._client.alter_group_offsets(group, wanted)))

    def delete_offsets(self, group: str, *places: Place) -> None:
        wanted = [TopicPartition(*each) for each in places]
        _raise_first(attempt(lambda: self._client.delete_group_offsets(group, wanted)))

    def close(self) -> None:
        self._client.close()


def _raise_first(found: Mapping[TopicPartition, Any]) -> None:
    for place, error in found.items():
        if error.errno:
            raise ClientError(error.errno, f"{place}: {error.__name__}")


def _assignment(found: Any) -> frozenset[Place]:
    if not found:
        return frozenset()
    return frozenset((each["topic"], index) for each in found["assigned_partitions"] for index in each["partitions"])
