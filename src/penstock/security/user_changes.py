"""Users: made, changed, removed, and the first of them.

Who asks is not asked here: the door decides ALTER of the cluster first, and lets nobody do any of this by an API key
(`may_change`).
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from penstock.engine.access import Subject
from penstock.errors import Code, PenstockError
from penstock.ports.clock import Clock
from penstock.ports.randomness import Randomness
from penstock.security import paths
from penstock.security.changes import Change, Changes
from penstock.security.directory import Credential, Directory, User, encode_credential, encode_user
from penstock.security.loader import InThread
from penstock.security.methods import Method
from penstock.security.names import check_user_name
from penstock.security.passwords import MAX_PASSWORD_BYTES
from penstock.security.roles import ADMIN, MAX_ROLES_OF_A_USER, check_grants
from penstock.security.scram import (
    ITERATIONS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SALT_BYTES,
    Mechanism,
    ScramKeys,
    derive,
    of_salted,
)
from penstock.security.secret import Secret

_MAX_SALT_BYTES: Final = 1024
_BOOTSTRAP_BITS: Final = 192


def may_change(subject: Subject) -> bool:
    """Whether somebody may change users, rules or keys at all: no key may, or it would outlive its own end."""
    return subject.method != Method.API_KEY


def draw_password(randomness: Randomness) -> Secret:
    """One that nobody guesses."""
    drawn = randomness.getrandbits(_BOOTSTRAP_BITS).to_bytes(_BOOTSTRAP_BITS // 8, "big")
    return Secret(base64.urlsafe_b64encode(drawn))


class UserChanges:
    """Args:
    in_thread: where passwords are salted.
    """

    def __init__(self, changes: Changes, clock: Clock, randomness: Randomness, in_thread: InThread) -> None:
        self._changes = changes
        self._clock = clock
        self._randomness = randomness
        self._in_thread = in_thread

    async def create(
        self, name: str, password: Secret | None, *, roles: Iterable[str] = (), may_use_certificate: bool = False
    ) -> None:
        """A user; without a password it is one who comes with a certificate, or with API keys alone.

        Raises PenstockError EXISTS, INVALID_REQUEST, UNACCEPTABLE_CREDENTIAL.
        """
        check_user_name(name)
        keys = None if password is None else await self._derive(password)
        user = User(name, tuple(dict.fromkeys(roles)), True, may_use_certificate, self._clock.now_ms())

        def plan(directory: Directory) -> Change:
            if name in directory.users:
                raise PenstockError(Code.EXISTS, f"user {name!r} exists already")
            check_grants(user.roles, directory.roles)
            return _change(user, keys)

        await self._changes.make(plan)

    async def bootstrap(self, name: str, password: Secret | None = None) -> Secret | None:
        """The first user, who may do everything; its password, if it was made here.

        Raises PenstockError NOT_ALLOWED once there is any user.
        """
        check_user_name(name)
        made = None if password is not None else draw_password(self._randomness)
        keys = await self._derive(password or made or Secret(b""))
        user = User(name, (ADMIN,), made_ms=self._clock.now_ms())

        def plan(directory: Directory) -> Change:
            if directory.users or directory.credentials:
                raise PenstockError(
                    Code.NOT_ALLOWED,
                    f"user {name!r} cannot be made the first one: there are users already",
                    help="ask one of those with the role admin",
                )
            return _change(user, keys)

        await self._changes.make(plan)
        return made

    async def alter(
        self,
        name: str,
        *,
        roles: Iterable[str] | None = None,
        is_enabled: bool | None = None,
        may_use_certificate: bool | None = None,
    ) -> None:
        """What is None stays. Raises PenstockError NOT_FOUND, INVALID_REQUEST."""
        given = None if roles is None else tuple(dict.fromkeys(roles))

        def plan(directory: Directory) -> Change:
            user = _known(directory, name)
            if given is not None:
                check_grants(given, directory.roles)
                user = replace(user, roles=given)
            if is_enabled is not None:
                user = replace(user, is_enabled=is_enabled)
            if may_use_certificate is not None:
                user = replace(user, may_use_certificate=may_use_certificate)
            return Change() if user == directory.users[name] else _change(user, None)

        await self._changes.make(plan)

    async def change_roles(self, name: str, *, give: Iterable[str] = (), take: Iterable[str] = ()) -> tuple[str, ...]:
        """Roles given to a user and taken from it, whatever others do meanwhile; those it has then.

        Raises PenstockError NOT_FOUND, INVALID_REQUEST, LIMIT_EXCEEDED.
        """
        given, taken = tuple(give), frozenset(take)
        left: tuple[str, ...] = ()

        def plan(directory: Directory) -> Change:
            nonlocal left
            user = _known(directory, name)
            for role in sorted(taken.difference(user.roles)):
                raise PenstockError(
                    Code.NOT_FOUND,
                    f"user {name!r} does not have the role {role!r}",
                    help=f"it has {', '.join(user.roles) or 'none'}",
                )
            left = tuple(dict.fromkeys(role for role in (*user.roles, *given) if role not in taken))
            check_grants(given, directory.roles)
            if len(left) > MAX_ROLES_OF_A_USER:
                check_grants(left, directory.roles)
            return Change() if left == user.roles else _change(replace(user, roles=left), None)

        await self._changes.make(plan)
        return left

    async def set_password(self, name: str, password: Secret) -> None:
        """Raises PenstockError NOT_FOUND, UNACCEPTABLE_CREDENTIAL."""
        keys = await self._derive(password)

        def plan(directory: Directory) -> Change:
            _known(directory, name)
            return Change({paths.scram_path(name): encode_credential(name, keys)})

        await self._changes.make(plan)

    async def set_salted(self, name: str, mechanism: Mechanism, salted: Secret, salt: bytes, iterations: int) -> None:
        """Kafka's AlterUserScramCredentials: a password that was salted elsewhere; a user is made if there is none.

        Raises PenstockError UNACCEPTABLE_CREDENTIAL, INVALID_REQUEST.
        """
        if not name:
            raise _unacceptable("a user without a name")
        check_user_name(name)
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise _unacceptable(f"{iterations} iterations; allowed: {MIN_ITERATIONS} to {MAX_ITERATIONS}")
        if not 0 < len(salt) <= _MAX_SALT_BYTES or len(salted.reveal()) != mechanism.size_bytes:
            raise _unacceptable(f"a salt of {len(salt)} bytes, or a salted password that is not one of {mechanism}")
        keys = of_salted(mechanism, salted.reveal(), salt, iterations)

        def plan(directory: Directory) -> Change:
            kept = {**_kept(directory, name).keys, mechanism: keys}
            made = User(name, made_ms=self._clock.now_ms())
            return _change(None if name in directory.users else made, kept, name)

        await self._changes.make(plan)

    async def delete_mechanism(self, name: str, mechanism: Mechanism) -> None:
        """The user stays. Raises PenstockError NOT_FOUND."""

        def plan(directory: Directory) -> Change:
            kept = dict(_kept(directory, name).keys)
            if kept.pop(mechanism, None) is None:
                raise PenstockError(Code.NOT_FOUND, f"user {name!r} has no password for {mechanism}")
            path = paths.scram_path(name)
            return Change({path: encode_credential(name, kept)}) if kept else Change(delete=[path])

        await self._changes.make(plan)

    async def delete(self, name: str) -> None:
        """The user, its password and its keys. Rules about it stay, as in Kafka. Raises PenstockError NOT_FOUND."""

        def plan(directory: Directory) -> Change:
            _known(directory, name)
            gone = [paths.user_path(name)]
            if name in directory.credentials:
                gone.append(paths.scram_path(name))
            for key in directory.keys.values():
                if key.user == name:  # else it would be that of the next user of the name
                    gone += [paths.key_path(key.id), paths.used_path(key.id)]
            return Change(delete=gone)

        await self._changes.make(plan)

    async def _derive(self, password: Secret) -> Mapping[Mechanism, ScramKeys]:
        said = password.reveal()
        if not 0 < len(said) <= MAX_PASSWORD_BYTES or b"\0" in said:
            raise _unacceptable(f"a password has 1 to {MAX_PASSWORD_BYTES} bytes, none of them zero")
        try:
            said.decode()
        except UnicodeDecodeError:
            raise _unacceptable("a password is text in UTF-8") from None
        salts = {mechanism: self._randomness.getrandbits(SALT_BYTES * 8) for mechanism in Mechanism}
        return {
            mechanism: await self._in_thread(derive, mechanism, said, salt.to_bytes(SALT_BYTES, "big"), ITERATIONS)
            for mechanism, salt in salts.items()
        }


def _change(user: User | None, keys: Mapping[Mechanism, ScramKeys] | None, name: str = "") -> Change:
    change = Change()
    if user is not None:
        name = user.name
        change.put[paths.user_path(name)] = encode_user(user)
    if keys is not None:
        change.put[paths.scram_path(name)] = encode_credential(name, keys)
    return change


def _known(directory: Directory, name: str) -> User:
    user = directory.users.get(name)
    if user is None:
        raise PenstockError(Code.NOT_FOUND, f"there is no user {name!r}")
    return user


def _kept(directory: Directory, name: str) -> Credential:
    return directory.credentials.get(name, Credential({}, 0))


def _unacceptable(what: str) -> PenstockError:
    return PenstockError(Code.UNACCEPTABLE_CREDENTIAL, what)
