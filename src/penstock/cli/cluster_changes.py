"""What operators have a cluster do: move partitions, elect leaders, forget a broker, change settings.

Each is one request to any broker. A refusal of one partition is no refusal of the others: all are told in the end.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.cli import wire
from penstock.cli.cluster_view import BROKER, Place, View
from penstock.cli.failure import CommandError
from penstock.cluster.plans import Move

Refusals = dict[Place, str]
"""Why partitions were refused what was asked."""

_SET, _DELETE = 0, 1
_AT_ONCE: Final = 500
_NAMED: Final = 5
_PREFERRED, _UNCLEAN = 0, 1
_NOT_NEEDED: Final = "ELECTION_NOT_NEEDED"
_NO_MOVE: Final = "NO_REASSIGNMENT_IN_PROGRESS"


def start_moves(view: View, moves: Sequence[Move]) -> Refusals:
    return _alter(view, {move.place: list(move.new) for move in moves})


def cancel_moves(view: View, places: Iterable[Place]) -> Refusals:
    """Take moves back; those that have ended meanwhile are left as they are."""
    return _alter(view, dict.fromkeys(places))


def _alter(view: View, targets: Mapping[Place, list[int] | None]) -> Refusals:
    refused: Refusals = {}
    places = list(targets)
    for start in range(0, len(places), _AT_ONCE):
        topics = [
            {
                "name": topic,
                "partitions": [{"partition_index": index, "replicas": targets[topic, index]} for index in some],
            }
            for topic, some in _by_topic(places[start : start + _AT_ONCE]).items()
        ]
        told = view.cluster.ask(
            None,
            "alter_partition_reassignments",
            timeout=view.server_timeout_ms,
            allow_replication_factor_change=True,
            topics=topics,
        )
        wire.check(told.error_code, "partitions cannot be moved", told.error_message)
        for topic in told.responses:
            for each in topic.partitions:
                if each.error_code and wire.error_name(each.error_code) != _NO_MOVE:
                    refused[topic.name, each.partition_index] = _reason(each)
    return refused


def elect(view: View, places: Iterable[Place] | None, *, unclean: bool = False) -> tuple[list[Place], Refusals]:
    """Which partitions have another leader now, and which could not get one; None stands for all."""
    asked = None
    if places is not None:
        asked = [{"topic": topic, "partitions": some} for topic, some in _by_topic(places).items()]
    told = view.cluster.ask(
        None,
        "elect_leaders",
        election_type=_UNCLEAN if unclean else _PREFERRED,
        topic_partitions=asked,
        timeout=view.server_timeout_ms,
    )
    wire.check(told.error_code, "leaders cannot be elected")
    done: list[Place] = []
    refused: Refusals = {}
    for topic in told.replica_election_results:
        for each in topic.partition_result:
            place = (topic.topic, each.partition_id)
            if not each.error_code:
                done.append(place)
            elif wire.error_name(each.error_code) != _NOT_NEEDED:
                refused[place] = _reason(each)
    return done, refused


def unregister(view: View, broker_id: int) -> None:
    told = view.cluster.ask(None, "unregister_broker", broker_id=broker_id)
    wire.check(told.error_code, f"broker {broker_id} cannot be forgotten", told.error_message)


def alter_config(
    view: View, broker_id: int | None, changes: Mapping[str, str | None], *, dry_run: bool = False
) -> None:
    """Set what has a value, unset what has none, for a broker or for all of them."""
    configs = [
        {"name": name, "config_operation": _DELETE if value is None else _SET, "value": value}
        for name, value in changes.items()
    ]
    resource = {
        "resource_type": BROKER,
        "resource_name": "" if broker_id is None else str(broker_id),
        "configs": configs,
    }
    told = view.cluster.ask(None, "incremental_alter_configs", resources=[resource], validate_only=dry_run)
    what = "all brokers" if broker_id is None else f"broker {broker_id}"
    for each in told.responses:
        wire.check(each.error_code, f"settings of {what} cannot be changed", each.error_message)


def check_refusals(refused: Refusals, what: str) -> None:
    """Raise `CommandError` if there are any."""
    if refused:
        told = "; ".join(f"{topic}-{index}: {why}" for (topic, index), why in list(refused.items())[:_NAMED])
        more = f"; and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        raise CommandError(f"{what}: {told}{more}")


def _by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, index in places:
        found.setdefault(topic, []).append(index)
    return found


def _reason(answer: Any) -> str:
    return answer.error_message or wire.error_name(answer.error_code).lower().replace("_", " ")
