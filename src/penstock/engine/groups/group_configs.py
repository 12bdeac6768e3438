"""What is set for each group, and how it is changed: kept in the metadata store, where every broker knows it from.

A group need not be there to have settings, and keeps them when it is deleted, as with Kafka. Each change expects what
is stored as it was seen, so of two that are made at once one has seen the other.
"""

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Protocol
from urllib.parse import quote, unquote

import orjson

from penstock.engine.groups.consumer_requests import ConsumerLimits
from penstock.engine.groups.group_config import (
    CONSUMER_HEARTBEAT,
    CONSUMER_SESSION,
    GroupConfig,
    check_group_settings,
    make_group_config,
    tidy_group_settings,
)
from penstock.engine.groups.share_requests import ShareTimes
from penstock.errors import Code, PenstockError
from penstock.ports.metadata import MetadataConflict, MetadataStore, MetadataUnavailable

GROUPS: Final = "groups/"
MAX_CONFIGURED: Final = 10_000
"""Groups with settings of their own: every broker keeps them in memory."""
LONGEST_GROUP_ID: Final = 1024
"""In characters; it is the key of every record of the group, and kept in memory."""
Settings = Mapping[str, str]
_NOTHING: Final[Settings] = MappingProxyType({})


def group_key(group_id: str) -> str:
    """Quoted as in URLs: a group id may be any text."""
    return GROUPS + quote(group_id, safe="")


def read_group_key(key: str) -> str:
    return unquote(key.removeprefix(GROUPS))


class Known(Protocol):
    """What a broker knows of what is set for groups."""

    async def load(self, store: MetadataStore) -> None:
        """At the start: know what is stored."""
        ...

    @property
    def given(self) -> Mapping[str, Settings]:
        """By group, for those that have any. What is set for one is another object when it changes."""
        ...

    def check_change(self) -> None:
        """Raises PenstockError NOT_AVAILABLE while some brokers would not go by what is set."""
        ...

    async def until_known(self, group_id: str, settings: Settings, revision: int) -> None:
        """Return when `given` has a change that was made, or what came later. Raises PenstockError TIMED_OUT."""
        ...


class KnownAlone:
    """Of a broker on its own, where nobody else changes anything."""

    def __init__(self) -> None:
        self.given: dict[str, Settings] = {}

    async def load(self, store: MetadataStore) -> None:
        self.given = {read_group_key(entry.key): orjson.loads(entry.value) for entry in await store.list(GROUPS)}

    def check_change(self) -> None:
        return None

    async def until_known(self, group_id: str, settings: Settings, revision: int) -> None:
        if settings:
            self.given[group_id] = settings
        else:
            self.given.pop(group_id, None)


class GroupConfigs:
    """Args:
    limits: what the broker has for groups of the consumer protocol, as far as nothing else is set for them.

    Attributes:
        known: replaced by that of a cluster, before the start.
        of_broker: the broker's own values, by the names they have for groups.
    """

    def __init__(self, store: MetadataStore, limits: ConsumerLimits | None = None) -> None:
        self._limits = limits = limits or ConsumerLimits()
        self.known: Known = KnownAlone()
        self.of_broker: Settings = {
            CONSUMER_SESSION: str(limits.session_timeout_ms),
            CONSUMER_HEARTBEAT: str(limits.heartbeat_interval_ms),
        }
        self._store = store
        self._changing = asyncio.Lock()
        self._default = make_group_config(_NOTHING, self.of_broker)
        self._made: dict[str, tuple[Settings, GroupConfig]] = {}

    async def load(self) -> None:
        await self.known.load(self._store)

    def get(self, group_id: str) -> Settings:
        """What is set for a group, as it was set."""
        return self.known.given.get(group_id, _NOTHING)

    def of(self, group_id: str) -> GroupConfig:
        """What a group goes by. Hot path."""
        given = self.known.given.get(group_id)
        if given is None:
            self._made.pop(group_id, None)
            return self._default
        made = self._made.get(group_id)
        if made is None or made[0] is not given:
            made = self._made[group_id] = given, make_group_config(given, self.of_broker)
        return made[1]

    def consumer_limits(self, group_id: str) -> ConsumerLimits:
        """What a group of the consumer protocol goes by."""
        config = self.of(group_id)
        return self._limits._replace(
            session_timeout_ms=config.consumer_session_timeout_ms,
            heartbeat_interval_ms=config.consumer_heartbeat_interval_ms,
        )

    def share_times(self, group_id: str) -> ShareTimes:
        """What a share group goes by."""
        config = self.of(group_id)
        return ShareTimes(config.share_session_timeout_ms, config.share_heartbeat_interval_ms)

    def configured(self) -> list[str]:
        """The groups for which something is set, in order."""
        return sorted(self.known.given)

    async def alter(self, group_id: str, alter: Callable[[Settings], Settings], *, validate_only: bool = False) -> None:
        """Change what is set for a group; durable, and in effect on this broker, when this returns.

        Args:
            alter: makes the new settings of those there are; may be called several times. What it raises is raised.

        Raises:
            PenstockError: INVALID_REQUEST, INVALID_GROUP_ID, INVALID_CONFIG, LIMIT_EXCEEDED, NOT_AVAILABLE.
        """
        _check_id(group_id)
        self.known.check_change()
        async with self._changing:
            settings, revision = await self._swap(group_id, alter, validate_only=validate_only)
            if not validate_only:
                await self.known.until_known(group_id, settings, revision)

    async def _swap(
        self, group_id: str, alter: Callable[[Settings], Settings], *, validate_only: bool
    ) -> tuple[Settings, int]:
        key = group_key(group_id)
        while True:
            try:
                entry = await self._store.get(key)
                before: Settings = {} if entry is None else orjson.loads(entry.value)
                after = tidy_group_settings(alter(before))
                check_group_settings(after, before, self.of_broker)
                at = 0 if entry is None else entry.revision
                if validate_only or after == before:
                    return before, at
                self._check_room(group_id, after)
                put, delete = ({key: orjson.dumps(after)}, ()) if after else ({}, (key,))
                return after, await self._store.transact(expect={key: at}, put=put, delete=delete)
            except MetadataConflict:
                continue
            except MetadataUnavailable as error:
                raise PenstockError(
                    Code.NOT_AVAILABLE,
                    f"the settings of group {group_id!r} may or may not be changed: the metadata store did not answer "
                    f"({error})",
                    help="Try again when the store answers, and look first.",
                ) from error

    def _check_room(self, group_id: str, settings: Settings) -> None:
        given = self.known.given
        if settings and group_id not in given and len(given) >= MAX_CONFIGURED:
            raise PenstockError(
                Code.LIMIT_EXCEEDED,
                f"{len(given)} groups have settings of their own already; allowed: {MAX_CONFIGURED}",
                help="unset those of groups that are gone",
            )


def _check_id(group_id: str) -> None:
    if not group_id:
        raise PenstockError(
            Code.INVALID_REQUEST, "a group without a name has no settings", help="name the group; set others per broker"
        )
    if len(group_id) > LONGEST_GROUP_ID:
        raise PenstockError(
            Code.INVALID_GROUP_ID, f"a group id of {len(group_id)} characters; allowed: {LONGEST_GROUP_ID}"
        )
