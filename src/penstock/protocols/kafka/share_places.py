"""A partition that a share consumer names: found for it, or why not, in the words of Kafka."""

from typing import Final, NamedTuple
from uuid import UUID

from penstock.engine.access import Operation
from penstock.engine.acting.acting import Acting
from penstock.engine.partition import Partition
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import leader_hints
from penstock.protocols.kafka.leader_hints import Leader
from penstock.protocols.kafka.share_sessions import Place
from penstock.protocols.kafka_wire import errors

_CODES: Final = {
    Code.UNKNOWN_QUEUE: errors.KAFKA_CODES[Code.UNKNOWN_TOPIC],  # nobody in the group has been given it yet
    Code.GROUP_NOT_FOUND: errors.KAFKA_CODES[Code.UNKNOWN_TOPIC],
    Code.NOT_COORDINATOR: errors.KAFKA_CODES[Code.NOT_LEADER],  # a ledger is led with its partition
}


class Refusal(NamedTuple):
    code: int
    leader: Leader | None
    """Who leads instead, if that is why."""


def find(acting: Acting, place: Place) -> Partition:
    """A partition that may be read and is led here. Raises PenstockError."""
    topic, index = place
    partition = acting.topics.partition_by_id(UUID(bytes=topic), index, Operation.READ)
    partition.check_epoch(-1)
    return partition


def refusal(acting: Acting, place: Place, error: PenstockError | OSError) -> Refusal:
    if isinstance(error, OSError):
        return Refusal(errors.KAFKA_STORAGE_ERROR, None)
    leader = None
    try:
        topic, index = place
        leader = leader_hints.hint(acting.topics.partition_by_id(UUID(bytes=topic), index, Operation.READ), error)
    except PenstockError:
        pass  # it is not there, or not to be seen
    return Refusal(_CODES.get(error.code) or errors.kafka_code(error), leader)
