"""Where share groups stand, as operators see and change it: the group's coordinator and the ledgers together.

    alter    the group's record says where it begins, by a new epoch  ->  the ledgers begin anew there
    forget   the group's record does not have the topic any more      ->  the ledgers forget the group
    delete   the group is kept from everybody                         ->  the ledgers forget it  ->  it is gone

What cannot be reached is told and left as it is. The record comes first, and is safe before a ledger hears of it: what
a ledger is to do by an older word is refused there (`machine.alter`). After a crash in between, the same request made
again finishes it. Until then the group goes on where the ledgers are; whoever asked was told nothing, or which
partitions were not reached after all. A group is gone last of all:
while any ledger may remember it, it is there to be deleted again.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from penstock.engine.groups.groups import Groups
from penstock.engine.groups.known_topics import TopicInfo
from penstock.engine.groups.share_requests import LostMember
from penstock.engine.groups.share_state import OPEN
from penstock.engine.queues.rulebook import Rulebook
from penstock.engine.queues.share_ledgers import Deed, Order, Place, ShareLedgers, Standing
from penstock.engine.topics import Topic, Topics
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.tasks import Tasks

log_ = get_logger("groups")
MOST_SPOTS: Final = 10_000
"""Partitions, or topics, that one may ask for at once by name."""
_AT_ONCE: Final = 1_000
"""Before others have their turn: some milliseconds."""
Spot = tuple[str, int]
"""A topic's name and a partition."""
Refused = dict[Spot, PenstockError | None]
_NOWHERE: Final = Standing()
_GONE: Final = frozenset({Code.UNKNOWN_TOPIC, Code.UNKNOWN_TOPIC_ID})
"""The ledger went with its topic."""


class ShareOffsets:
    """Of one broker; the verbs are for groups that it coordinates, and raise PenstockError."""

    def __init__(self, groups: Groups, topics: Topics, rulebook: Rulebook, ledgers: ShareLedgers, tasks: Tasks) -> None:
        self._tasks = tasks
        self._groups = groups
        self._topics = topics
        self._rulebook = rulebook
        self._ledgers = ledgers

    async def given(self, group: str) -> list[Spot]:
        """All partitions that a share group was ever given, and that are there; none of a group that is none."""
        try:
            begun = await self._groups.share_topics(group)
        except PenstockError as error:
            if error.code is not Code.GROUP_NOT_FOUND:
                raise
            return []
        names = [(self._topics.get_by_id(each.topic_id), each.partitions) for each in begun]
        return [(topic.name, index) for topic, indexes in names if topic is not None for index in indexes]

    async def describe(self, group: str, spots: Iterable[Spot]) -> dict[Spot, Standing]:
        """Where a group stands: what is not there, or was not begun, is nowhere."""
        await self._check_coordinated(group)
        found: dict[Spot, Standing] = {}
        left = iter(spots)
        while some := list(islice(left, _AT_ONCE)):
            places = {spot: place for spot in some if (place := self._place(*spot)) is not None}
            told = await self._ledgers.order(Order(Deed.LOOK, group, 0, "", tuple(places.values())))
            found |= {spot: told[place] for spot, place in places.items()}
            await asyncio.sleep(0)
        return found

    async def _check_coordinated(self, group: str) -> None:
        """Another broker is asked otherwise; a group that is not there is nowhere's."""
        try:
            await self._groups.share_topics(group)
        except PenstockError as error:
            if error.code is not Code.GROUP_NOT_FOUND:
                raise

    async def alter(self, group: str, offsets: Mapping[Spot, int]) -> Refused:
        """Have a group without members begin anew at offsets, or, for -1, where its settings say.

        The group is made if there is none. Told is what became of each partition.
        """
        refused: Refused = {}
        places: dict[Spot, Place] = {}
        for spot, offset in offsets.items():
            place = self._place(*spot, offset)
            if place is None:
                refused[spot] = _unknown(spot)
            elif offset < OPEN:
                refused[spot] = PenstockError(Code.INVALID_REQUEST, f"{spot[0]}-{spot[1]} cannot begin at {offset}")
            else:
                places[spot] = place
        away = await self._not_reached(group, places.values())
        refused |= {spot: away[place] for spot, place in places.items() if place in away}
        places = {spot: place for spot, place in places.items() if place not in away}
        starts: dict[TopicInfo, dict[int, int]] = {}
        for (name, index), place in places.items():
            if (topic := self._topics.get(name)) is not None:
                starts.setdefault(_info(topic), {})[index] = place.offset
        epoch = await self._groups.restart_share(group, starts)
        begun = tuple(place for place in places.values() if place.offset != OPEN)
        anew = tuple(place for place in places.values() if place.offset == OPEN)
        found = await self._ledgers.order(Order(Deed.ALTER, group, epoch, "", begun)) if begun else {}
        if anew:
            found |= await self._ledgers.order(Order(Deed.FORGET, group, epoch, "", anew))
        return {**refused, **{spot: found[place].error for spot, place in places.items()}}

    async def delete(self, group: str, names: Collection[str]) -> dict[str, PenstockError | None]:
        """Have a group without members forget topics: it is as if they were new to it. Told of each."""
        results: dict[str, PenstockError | None] = dict.fromkeys(names)
        topics = {name: topic for name in names if (topic := self._topics.get(name)) is not None}
        before = {each.topic_id for each in await self._groups.share_topics(group)}
        for place, refusal in (await self._not_reached(group, _places(topics.values()))).items():
            for name in [name for name, topic in topics.items() if topic.topic_id == place.topic_id]:
                results[name] = refusal
                del topics[name]
        epoch = await self._groups.forget_share_topics(group, [topic.topic_id for topic in topics.values()])
        found = await self._ledgers.order(Order(Deed.FORGET, group, epoch, "", _places(topics.values())))
        for name in names:
            if results[name] is not None:
                continue
            topic = topics.get(name)
            standings = [] if topic is None else [found[place] for place in _places([topic])]
            error = next((each.error for each in standings if each.error is not None), None)
            if topic is None:
                error = PenstockError(Code.UNKNOWN_TOPIC, f"topic {name!r} is unknown")
            elif error is None and topic.topic_id not in before and not any(each.was_known for each in standings):
                error = PenstockError(Code.UNKNOWN_TOPIC, f"group {group!r} has not begun topic {name!r}")
            results[name] = error
        return results

    async def delete_group(self, group: str) -> None:
        """Delete a group of any kind. A share group has to be forgotten by all its ledgers first.

        Raises:
            PenstockError: NOT_ALLOWED if it is a queue that was made as one; COORDINATOR_NOT_AVAILABLE if a leader was
                not reached: the group is there still, and what forgot it begins anew if it is used.
        """
        owner = object()
        try:
            found = await self._groups.begin_forgetting(group, owner)
            if found is None:
                await self._groups.delete(group)
                return
            epoch, begun = found
            topics = [topic for each in begun if (topic := self._topics.get_by_id(each.topic_id)) is not None]
            self._check_no_queue(group, topics)
            await self._forget_everywhere(group, epoch, topics)
            await self._groups.delete_forgotten(group, owner)
        finally:
            await self._groups.end_forgetting(group, owner)

    def members_lost(self, lost: Sequence[LostMember]) -> None:
        """Have what they have leased be ended soon; where that is not done, leases end by themselves."""
        for member in lost:
            if member.assignment:
                self._tasks.spawn(self._expel(member), f"expel a member of {member.group_id!r}")

    async def _expel(self, member: LostMember) -> None:
        places = tuple(Place(topic_id, index) for topic_id, indexes in member.assignment for index in indexes)
        order = Order(Deed.EXPEL, member.group_id, member.epoch, member.member_id, places)
        for place, standing in (await self._ledgers.order(order)).items():
            if standing.error is not None and standing.error.code not in _GONE:
                log_.limited("expel").info(
                    "leases of a lost member end by themselves",
                    group=member.group_id,
                    topic=str(place.topic_id),
                    partition=place.partition,
                    error=str(standing.error),
                )

    def _check_no_queue(self, group: str, topics: Iterable[Topic]) -> None:
        for topic in topics:
            if self._rulebook.is_known(topic.name, group):
                raise PenstockError(
                    Code.NOT_ALLOWED,
                    f"group {group!r} is a queue of topic {topic.name!r} that was made as one",
                    help="delete the queue first with 'penstock queue delete'",
                )

    async def _forget_everywhere(self, group: str, epoch: int, topics: Collection[Topic]) -> None:
        places = _places(topics)
        errors = await self._not_reached(group, places)
        if not errors:
            errors = _errors(await self._ledgers.order(Order(Deed.FORGET, group, epoch, "", places)))
        for place, error in errors.items():
            topic = self._topics.get_by_id(place.topic_id)
            name = place.topic_id if topic is None else topic.name
            raise PenstockError(
                Code.COORDINATOR_NOT_AVAILABLE,
                f"group {group!r} is not deleted: {name}-{place.partition} cannot forget it now: {error}",
                help="delete it again when all partitions it reads are led",
            )

    async def _not_reached(self, group: str, places: Iterable[Place]) -> dict[Place, PenstockError]:
        """Where nothing can be ordered now. Asked first, so that it is all or nothing, but for bad luck."""
        return _errors(await self._ledgers.order(Order(Deed.LOOK, group, 0, "", tuple(places))))

    def _place(self, name: str, index: int, offset: int = OPEN) -> Place | None:
        topic = self._topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return Place(topic.topic_id, index, offset)


def _errors(standings: Mapping[Place, Standing]) -> dict[Place, PenstockError]:
    told = {place: each.error for place, each in standings.items()}
    return {place: error for place, error in told.items() if error is not None and error.code not in _GONE}


def check_count(count: int) -> None:
    """Raises PenstockError INVALID_REQUEST for more than can be asked for by name."""
    if count > MOST_SPOTS:
        raise PenstockError(
            Code.INVALID_REQUEST,
            f"{count} partitions or topics are named; allowed: {MOST_SPOTS}",
            help="ask for some at a time",
        )


def _places(topics: Iterable[Topic]) -> tuple[Place, ...]:
    return tuple(Place(topic.topic_id, index) for topic in topics for index in range(len(topic.partitions)))


def _info(topic: Topic) -> TopicInfo:
    return TopicInfo(topic.name, topic.topic_id, len(topic.partitions))


def _unknown(spot: Spot) -> PenstockError:
    return PenstockError(Code.UNKNOWN_TOPIC, f"partition {spot[0]}-{spot[1]} is unknown")
