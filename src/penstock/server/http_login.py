"""Who asks over HTTP, by the Authorization header: a user's password (Basic) or an API key (Bearer)."""

import base64
import binascii
from collections.abc import Callable, Collection
from enum import Enum
from typing import TYPE_CHECKING, Final

from penstock.engine.access import THE_CLUSTER, Access, Operation, Subject
from penstock.errors import Code, PenstockError

if TYPE_CHECKING:
    from penstock.security.authentication import Credentials
    from penstock.security.guard import Guard

_LONGEST: Final = 4096
_BASIC: Final = 'Basic realm="penstock", charset="UTF-8"'


class Admission(Enum):
    ALLOWED = 200
    UNKNOWN = 401
    """Who it is was not said, or not proved; to say it may help."""
    REFUSED = 403


class HttpLogin:
    """Args:
    ways: `basic`, `key`; what else is said, is not looked at.
    guard: users and rules, as soon as they are there.
    access: the rules in force, likewise.
    is_closed: whether rules decide, so that nothing is told as long as there are none.
    """

    def __init__(
        self,
        door: str,
        ways: Collection[str],
        guard: "Callable[[], Guard | None]",
        access: Callable[[], Access | None],
        *,
        is_closed: bool,
    ) -> None:
        self._door = door
        self._ways = ways
        self._guard = guard
        self._access = access
        self._is_closed = is_closed

    @property
    def challenge(self) -> dict[str, str]:
        """The header by which a client learns how to say who it is."""
        return {"www-authenticate": _BASIC if "basic" in self._ways else "Bearer"}

    async def admit(self, host: str, authorization: str) -> Admission:
        """Whether who asks may see how the cluster is."""
        access = self._access()
        if access is None:
            return Admission.REFUSED if self._is_closed else Admission.ALLOWED
        try:
            subject = await self._subject(host, authorization)
        except PenstockError as error:
            if error.code is Code.NOT_AUTHENTICATED:
                return Admission.UNKNOWN
            raise
        if access.decide(subject, Operation.DESCRIBE, THE_CLUSTER):
            return Admission.ALLOWED
        return Admission.UNKNOWN if self._ways and not authorization else Admission.REFUSED

    async def _subject(self, host: str, authorization: str) -> Subject:
        guard = self._guard()
        if guard is None or not self._ways or not authorization:
            return Subject(host=host, door=self._door)
        from penstock.security.authentication import Peer

        return await guard.authenticator.authenticate(self._read(authorization), Peer(host, self._door))

    def _read(self, authorization: str) -> "Credentials":
        """Raises `NotAuthenticated`."""
        from penstock.security.authentication import Key, parse_plain
        from penstock.security.refusal import NotAuthenticated
        from penstock.security.secret import Secret

        scheme, _, said = authorization.strip().partition(" ")
        if len(said) > _LONGEST:
            raise NotAuthenticated(f"HTTP: an Authorization of {len(said)} characters")
        if scheme.lower() == "bearer" and "key" in self._ways:
            return Key(Secret(said.strip().encode()))
        if scheme.lower() == "basic" and "basic" in self._ways:
            try:
                user, separator, password = base64.b64decode(said, validate=True).partition(b":")
            except (binascii.Error, ValueError):
                raise NotAuthenticated("HTTP: not base64") from None
            if not separator:
                raise NotAuthenticated("HTTP: a user without a password")
            return parse_plain(b"\0" + user + b"\0" + password)
        raise NotAuthenticated(f"HTTP: {scheme[:20]!r} is not taken here")
