"""API keys: made and removed, and the hour they were last used in. Who asks is not asked here (see `user_changes`)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import orjson

from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.ports.clock import Clock
from penstock.ports.metadata import Entry, MetadataConflict, MetadataStore
from penstock.ports.randomness import Randomness
from penstock.security import paths
from penstock.security.api_keys import MAX_KEYS_OF_A_USER, MAX_RULES_OF_A_KEY, ApiKey, NewKey, digest_of, make_key
from penstock.security.changes import Change, Changes
from penstock.security.directory import Directory, encode_key
from penstock.security.loader import Loader
from penstock.security.rules import Rule, check_rule
from penstock.security.sealing import SealingKeys, sealing_key_of
from penstock.security.secret import Secret

log_ = get_logger("security")
_HOUR_MS: Final = 3_600_000
_LAST_HOUR: Final = 1 << 31
_VERSION: Final = 1
_MAX_NOTE_CHARS: Final = 200


def key_principal(key_id: str) -> str:
    """What the rules of a key are about."""
    return f"Key:{key_id}"


class Sealed(NamedTuple):
    """The ids of sealing keys."""

    current: str
    """Of the one that seals."""
    known: tuple[str, ...]
    """Of all that open here, with that one."""
    counts: Mapping[str, int]
    """How many secrets there are by each."""


class KeyChanges:
    def __init__(
        self, changes: Changes, loader: Loader, sealing: SealingKeys, clock: Clock, randomness: Randomness
    ) -> None:
        self._changes = changes
        self._loader = loader
        self._sealing = sealing
        self._clock = clock
        self._randomness = randomness

    async def create(
        self,
        user: str,
        *,
        rules: Iterable[Rule] | None = None,
        until_ms: int = 0,
        lasts_ms: int = 0,
        signs: bool = False,
        note: str = "",
    ) -> NewKey:
        """A key of a user; its text is told this once.

        Args:
            rules: what of the user's rights the key has, whomever they name; None: all.
            until_ms: the moment it ends; 0: never.
            lasts_ms: the same as from now; 0: as `until_ms` says.
            signs: whether requests will be signed by it, so that its secret has to be readable here.

        Raises:
            PenstockError: NOT_FOUND, INVALID_REQUEST, LIMIT_EXCEEDED.
        """
        made = make_key(self._randomness)
        now_ms = self._clock.now_ms()
        until_ms = now_ms + lasts_ms if lasts_ms else until_ms
        if until_ms and until_ms <= now_ms:
            raise PenstockError(Code.INVALID_REQUEST, "the key would have ended already")
        if len(note) > _MAX_NOTE_CHARS or not note.isprintable():
            raise PenstockError(Code.INVALID_REQUEST, f"a note has at most {_MAX_NOTE_CHARS} characters that are seen")
        path = paths.key_path(made.id)
        key = ApiKey(
            made.id,
            user,
            digest_of(made.text),
            now_ms,
            until_ms,
            _narrowed(made.id, rules),
            self._sealing.seal(path, made.secret, self._randomness) if signs else "",
            note,
        )

        def plan(directory: Directory) -> Change:
            if user not in directory.users:
                raise PenstockError(Code.NOT_FOUND, f"there is no user {user!r}")
            if sum(each.user == user for each in directory.keys.values()) >= MAX_KEYS_OF_A_USER:
                raise PenstockError(Code.LIMIT_EXCEEDED, f"user {user!r} has {MAX_KEYS_OF_A_USER} API keys already")
            return Change({path: encode_key(key)})

        await self._changes.make(plan)
        return made

    async def delete(self, key_id: str) -> None:
        """Raises PenstockError NOT_FOUND."""

        def plan(directory: Directory) -> Change:
            if key_id not in directory.keys:
                raise PenstockError(Code.NOT_FOUND, f"there is no API key {key_id!r}")
            return Change(delete=[paths.key_path(key_id), paths.used_path(key_id)])

        await self._changes.make(plan)

    async def last_used_ms(self) -> Mapping[str, int]:
        """By the ids of keys, the hour each was last used in at any broker, as its first moment.

        Raises MetadataUnavailable.
        """
        found = (await self._loader.store.snapshot(paths.USED)).entries
        hours = {each.key.removeprefix(paths.USED): _hour_in(each) for each in found}
        return {key_id: hour * _HOUR_MS for key_id, hour in hours.items() if hour >= 0}

    def has_ended(self, key: ApiKey) -> bool:
        return key.has_ended(self._clock.now_ms())

    def signing_secret(self, key_id: str) -> Secret | None:
        """What requests of a key are signed by; None: there is no such key, it has ended, or it does not sign.

        Raises `SealedAway`.
        """
        directory = self._loader.directory
        key = directory.keys.get(key_id) if directory is not None else None
        if key is None or not key.sealed or key.has_ended(self._clock.now_ms()):
            return None
        return self._sealing.open(paths.key_path(key_id), key.sealed)

    def sealed_by(self) -> Sealed:
        """What secrets are sealed by here."""
        directory = self._loader.directory
        keys = directory.keys.values() if directory is not None else ()
        counts = Counter(sealing_key_of(key.sealed) for key in keys if key.sealed)
        return Sealed(self._sealing.current, self._sealing.known, counts)

    async def reseal(self) -> int:
        """Seal anew what was sealed by another key than the one that seals now; how many there were.

        Raises `SealedAway`, before anything is changed, if something was sealed by a key that is not here.
        """
        directory = self._loader.directory
        if directory is not None:
            for key in directory.keys.values():
                if self._is_old(key):
                    self._sealing.open(paths.key_path(key.id), key.sealed)
        old = [key.id for key in directory.keys.values() if self._is_old(key)] if directory is not None else []
        for key_id in old:
            await self._changes.make(lambda found, key_id=key_id: self._resealed(found, key_id))  # type: ignore[misc]
        return len(old)

    def _is_old(self, key: ApiKey) -> bool:
        return key.sealed != "" and not self._sealing.is_current(key.sealed)

    def _resealed(self, directory: Directory, key_id: str) -> Change:
        key = directory.keys.get(key_id)
        if key is None or not self._is_old(key):
            return Change()
        path = paths.key_path(key_id)
        sealed = self._sealing.seal(path, self._sealing.open(path, key.sealed), self._randomness)
        return Change({path: encode_key(replace(key, sealed=sealed))})


def _narrowed(key_id: str, rules: Iterable[Rule] | None) -> tuple[Rule, ...] | None:
    if rules is None:
        return None
    found = tuple(dict.fromkeys(rule._replace(principal=key_principal(key_id)) for rule in rules))
    if len(found) > MAX_RULES_OF_A_KEY:
        raise PenstockError(Code.LIMIT_EXCEEDED, f"{len(found)} rules; an API key may have {MAX_RULES_OF_A_KEY}")
    for rule in found:
        check_rule(rule)
    return found


class UsedKeys:
    """Notes the hour each API key was last used in: in memory at once, in the store when `save` is called."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._hours: dict[str, int] = {}
        self._unsaved: dict[str, int] = {}

    def note(self, key_id: str, now_ms: int) -> None:
        """A key that is there was used."""
        hour = now_ms // _HOUR_MS
        if self._hours.get(key_id, -1) < hour:
            self._hours[key_id] = self._unsaved[key_id] = hour

    async def save(self) -> None:
        """Raises MetadataUnavailable; then what is left is saved by the next call."""
        while self._unsaved:
            key_id, hour = next(iter(self._unsaved.items()))
            await self._save(key_id, hour)
            if self._unsaved.get(key_id) == hour:
                del self._unsaved[key_id]

    async def _save(self, key_id: str, hour: int) -> None:
        there = await self._store.get(paths.key_path(key_id))
        if there is None:
            self._hours.pop(key_id, None)
            return
        noted = await self._store.get(paths.used_path(key_id))
        if _hour_in(noted) >= hour:
            return  # by another broker
        expect = {there.key: there.revision, paths.used_path(key_id): noted.revision if noted is not None else 0}
        try:
            await self._store.transact(
                expect=expect, put={paths.used_path(key_id): orjson.dumps({"version": _VERSION, "hour": hour})}
            )
        except MetadataConflict:
            return  # it was removed, or another broker was quicker: as good

    async def last_used_ms(self, key_id: str) -> int | None:
        """The hour a key was last used in, as its first moment; None: never."""
        noted = await self._store.get(paths.used_path(key_id))
        hour = max(self._hours.get(key_id, -1), _hour_in(noted))
        return hour * _HOUR_MS if hour >= 0 else None


def _hour_in(noted: Entry | None) -> int:
    """The hour that is noted; -1: none, or nobody can read it. Then the next use of the key replaces it."""
    if noted is None:
        return -1
    try:
        hour = orjson.loads(noted.value)["hour"]
    except (KeyError, TypeError, ValueError):
        hour = -1
    if type(hour) is int and 0 <= hour <= _LAST_HOUR:
        return hour
    log_.limited("last use").warning("when an API key was last used cannot be read", path=noted.key)
    return -1
