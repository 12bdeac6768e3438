"""What an operator asks of a running cluster: move partitions, elect leaders, forget brokers, change settings.

Any broker may be asked. Each change is one compare-and-swap in the metadata store, right whoever makes it. What follows
from it (copying, arriving, handing over) is done by brokers and controller, whatever becomes of the one that was asked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import orjson

from penstock.cluster import broker_settings, keys
from penstock.cluster.image import Image, TopicEntry
from penstock.cluster.watcher import Watcher
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.engine.topics import TopicRecord
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.ports.metadata import MetadataConflict, MetadataStore, MetadataUnavailable

log_ = get_logger("cluster")
T = TypeVar("T")
Place = tuple[str, int]
Outcomes = dict[Place, PenstockError | None]
_AT_ONCE = 32
_EFFECT_S = 10.0


class Operations:
    """Every verb raises PenstockError NOT_AVAILABLE when the store does not answer; asking again does no harm."""

    def __init__(self, store: MetadataStore, watcher: Watcher, image: Image) -> None:
        self._store = store
        self._watcher = watcher
        self._image = image

    # --- moving partitions

    def moving(self) -> list[tuple[TopicEntry, int, PartitionState]]:
        """Partitions on their way, in order."""
        return [found for found in self._image.partitions() if found[2].target]

    async def move(self, targets: Mapping[Place, Sequence[int] | None]) -> Outcomes:
        """Let partitions move to other brokers, the one that should lead first; None takes a move back."""
        return await self._each(list(targets), lambda place: self._move(place, targets[place]))

    async def _move(self, place: Place, target: Sequence[int] | None) -> None:
        def moved(state: PartitionState) -> PartitionState:
            if target is not None:
                self._check_target(place, target, state.replicas)
                is_there = not state.target and tuple(target) == state.replicas
                return state if is_there or tuple(target) == state.target else state.move_to(target)
            if not state.target:
                raise PenstockError(Code.NO_REASSIGNMENT, f"{place[0]}-{place[1]} is not being moved")
            return state.move_to(state.origin)

        await self._change(place, moved)

    def _check_target(self, place: Place, target: Sequence[int], held_by: Collection[int]) -> None:
        """Whoever is to get a replica must be there; one that has it already may be down."""
        live = self._image.live()
        wrong = next((each for each in target if each not in live and each not in held_by), None)
        why = ""
        if not target:
            why = "it names no broker"
        elif len(set(target)) < len(target):
            why = f"it names a broker twice: {list(target)}"
        elif wrong is not None:
            known = "is not there now" if wrong in self._image.members else "is unknown"
            why = f"broker {wrong} {known}; there are {', '.join(map(str, live)) or 'none'}"
        if why:
            raise PenstockError(Code.INVALID_ASSIGNMENT, f"cannot move {place[0]}-{place[1]}: {why}")

    # --- electing

    async def elect(self, places: Sequence[Place] | None, *, unclean: bool = False) -> Outcomes:
        """Let the broker lead that should; `unclean`: whoever is there, where nobody leads, whatever it lacks.

        Args:
            places: None stands for all; those that need no election are left out then.
        """
        wanted = places if places is not None else [(topic.name, index) for topic, index, _ in self._image.partitions()]
        outcomes = await self._each(wanted, lambda place: self._elect(place, unclean))
        if places is not None:
            return outcomes
        return {
            place: error
            for place, error in outcomes.items()
            if error is None or error.code is not Code.ELECTION_NOT_NEEDED
        }

    async def _elect(self, place: Place, unclean: bool) -> None:
        elected = self._forced if unclean else self._preferred
        await self._change(place, lambda state: elected(place, state))

    def _preferred(self, place: Place, state: PartitionState) -> PartitionState:
        first = state.replicas[0]
        if state.leader == first:
            raise PenstockError(Code.ELECTION_NOT_NEEDED, f"{place[0]}-{place[1]} is led by broker {first} already")
        if state.leader == NOBODY or first not in state.isr or not self._image.is_live(first):
            raise PenstockError(
                Code.PREFERRED_LEADER_NOT_AVAILABLE,
                f"broker {first} cannot lead {place[0]}-{place[1]}: in sync are {list(state.isr)}",
                help="wait until it is there and in sync",
            )
        if first in self._image.drained():
            raise PenstockError(
                Code.ELECTION_NOT_NEEDED, f"broker {first} is drained, and shall not lead {place[0]}-{place[1]}"
            )
        if self._image.brokers[first].leaving:
            raise PenstockError(
                Code.PREFERRED_LEADER_NOT_AVAILABLE,
                f"broker {first} is about to stop, and leads nothing until it is back",
            )
        return state.led_by(first)

    def _forced(self, place: Place, state: PartitionState) -> PartitionState:
        """Records may be lost by it, and an operator has said so."""
        name = f"{place[0]}-{place[1]}"
        if state.leader != NOBODY:
            raise PenstockError(Code.ELECTION_NOT_NEEDED, f"{name} is led by broker {state.leader}")
        topic = self._image.topics.get(place[0])
        ends = self._image.ends.get((topic.record.topic_id, place[1]), {}) if topic is not None else {}
        there = [replica for replica in state.replicas if self._image.is_live(replica)]
        if not there:
            raise PenstockError(
                Code.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"none of the brokers {list(state.replicas)} of {name} is there"
            )
        holders = {*state.isr, *state.elr, *state.last}

        def worth(replica: int) -> tuple[bool, bool, tuple[int, int, int]]:
            end = ends.get(replica)
            if end is None:
                return True, replica in holders, (-1, 0, 0)
            return end.is_usable, replica in holders, end.history

        chosen = max(there, key=worth)
        log_.warning("leader elected uncleanly, as an operator wants it", partition=name, broker=chosen)
        forced = replace(state, isr=(chosen,), elr=(), last=()).led_by(chosen)
        return replace(forced, forced_epoch=forced.leader_epoch)

    # --- brokers

    async def unregister(self, broker_id: int) -> None:
        """Forget a broker that is gone for good. Raises PenstockError UNKNOWN_BROKER, NOT_ALLOWED."""
        if broker_id not in self._image.members:
            raise PenstockError(Code.UNKNOWN_BROKER, f"broker {broker_id} is unknown")
        held = [
            f"{topic.name}-{index}" for topic, index, state in self._image.partitions() if broker_id in state.replicas
        ]
        if held:
            shown = ", ".join(held[:3]) + (", …" if len(held) > 3 else "")
            raise PenstockError(
                Code.NOT_ALLOWED,
                f"broker {broker_id} holds {len(held)} partitions ({shown})",
                help=f"move them first: 'penstock cluster decommission {broker_id}'",
            )
        running = PenstockError(
            Code.NOT_ALLOWED, f"broker {broker_id} is running", help="stop it first: it would register again"
        )

        async def forget() -> None:
            entry = await self._store.get(keys.member_key(broker_id))
            if await self._store.get(keys.broker_key(broker_id)) is not None:
                raise running
            if entry is not None:
                await self._store.transact(
                    expect={entry.key: entry.revision, keys.broker_key(broker_id): 0},
                    delete=[entry.key, keys.admitted_key(broker_id), keys.config_key(broker_id)],
                )

        await self._answered(forget, f"broker {broker_id} may or may not be forgotten")
        await self._watcher.until(lambda: broker_id not in self._image.members, _EFFECT_S)

    async def alter_settings(
        self, broker_id: int | None, alter: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool
    ) -> None:
        """Change what a broker, or all of them (None), go by from now on. Raises PenstockError INVALID_CONFIG."""
        if broker_id is not None and broker_id not in self._image.members:
            raise PenstockError(Code.INVALID_CONFIG, f"broker {broker_id} is unknown")
        key = keys.config_key(broker_id)

        async def change() -> int:
            entry = await self._store.get(key)
            before: Mapping[str, str] = {} if entry is None else orjson.loads(entry.value)
            after = broker_settings.check(broker_id, alter(before))
            if validate_only or after == before:
                return 0
            at = 0 if entry is None else entry.revision
            if not after:
                return await self._store.transact(expect={key: at}, delete=[key])
            return await self._store.transact(expect={key: at}, put={key: orjson.dumps(after)})

        revision = await self._answered(
            change, f"settings of {key.removeprefix(keys.CONFIGS)} may or may not be changed"
        )
        await self._watcher.until(lambda: self._image.revision >= revision, _EFFECT_S)

    # --- steps

    async def _each(self, places: Sequence[Place], step: Callable[[Place], Awaitable[None]]) -> Outcomes:
        outcomes: Outcomes = {}
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(place: Place) -> None:
            async with limit:
                try:
                    await step(place)
                    outcomes[place] = None
                except PenstockError as error:
                    outcomes[place] = error

        await asyncio.gather(*(one(place) for place in places))
        return {place: outcomes[place] for place in places}

    async def _change(self, place: Place, change: Callable[[PartitionState], PartitionState]) -> None:
        """Change a partition as the store has it; returns when the image shows it."""
        name, index = place

        async def swap() -> int:
            stored = await self._store.get(keys.TOPICS + name)
            key = keys.partition_key(TopicRecord.decode(stored.value).topic_id, index) if stored is not None else ""
            entry = await self._store.get(key) if key else None
            if entry is None:
                raise PenstockError(Code.UNKNOWN_TOPIC, f"{name}-{index} is unknown")
            state = PartitionState.decode(entry.value, entry.revision)
            after = change(state)
            if after is state:
                return 0
            return await self._store.transact(expect={key: entry.revision}, put={key: after.encode()})

        revision = await self._answered(swap, f"{name}-{index} may or may not be changed")
        await self._watcher.until(lambda: self._image.revision >= revision, _EFFECT_S)

    async def _answered(self, step: Callable[[], Awaitable[T]], otherwise: str) -> T:
        """What comes of a step; again when somebody else was quicker."""
        while True:
            try:
                return await step()
            except MetadataConflict:
                continue
            except MetadataUnavailable as error:
                raise PenstockError(
                    Code.NOT_AVAILABLE,
                    f"{otherwise}: {self._watcher.name} did not answer ({error})",
                    help="try again when the store answers, and look first",
                ) from error
