"""Who asks over HTTP: a user by password (Basic), an API key (Bearer), or else whom the client's certificate names."""

import base64
import binascii
from collections.abc import Callable, Collection
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.engine.access import THE_CLUSTER, Access, Operation, Subject
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger

if TYPE_CHECKING:
    from penstock.security.authentication import Credentials
    from penstock.security.guard import Guard

log_ = get_logger("http")

_LONGEST: Final = 4096
_BASIC: Final = 'Basic realm="penstock", charset="UTF-8"'


class Admission(Enum):
    ALLOWED = 200
    UNKNOWN = 401
    """Who it is was not said, or not proved; to say it may help."""
    REFUSED = 403


class Asker(NamedTuple):
    """What is known of who asks, before anything of it is believed but the certificate, which TLS has checked.

    Attributes:
        authorization: the header of that name, or nothing.
        certificate: as DER.
    """

    host: str = ""
    authorization: str = ""
    certificate: bytes | None = None


class HttpLogin:
    """Args:
    ways: `basic`, `key`, `certificate`; who comes by none of them is let in nowhere, unless there are none. What else
        is said, is not looked at.
    guard: users and rules, as soon as they are there.
    access: the rules in force, likewise.
    recognise: whom a certificate names, for who comes from a host.
    is_closed: whether rules decide, so that nothing is told as long as there are none.
    """

    def __init__(
        self,
        door: str,
        ways: Collection[str],
        guard: "Callable[[], Guard | None]",
        access: Callable[[], Access | None],
        recognise: Callable[[bytes | None, str], Subject | None],
        *,
        is_closed: bool,
    ) -> None:
        self._door = door
        self._ways = ways
        self._guard = guard
        self._access = access
        self._recognise = recognise
        self._is_closed = is_closed

    @property
    def challenge(self) -> dict[str, str]:
        """The header by which a client learns how to say who it is."""
        return {"www-authenticate": _BASIC if "basic" in self._ways else "Bearer"}

    async def admit(self, asker: Asker) -> Admission:
        """Whether who asks may see how the cluster is."""
        access = self._access()
        if access is None or (self._guard() is None and not self._tells_everybody):  # nobody is known yet, and no rule
            return Admission.ALLOWED if self._tells_everybody else Admission.REFUSED
        try:
            access.check(await self._subject(asker), Operation.DESCRIBE, THE_CLUSTER)
        except PenstockError as error:
            if error.code is Code.NOT_AUTHORISED:
                return Admission.REFUSED
            if error.code is not Code.NOT_AUTHENTICATED:
                raise
            if asker.authorization:
                log_.limited("login").warning("login failed", peer=asker.host, reason=getattr(error, "reason", ""))
            can_say_it = "basic" in self._ways or "key" in self._ways
            return Admission.UNKNOWN if can_say_it else Admission.REFUSED
        return Admission.ALLOWED

    async def knows(self, asker: Asker) -> bool:
        """Whether who asks for what everybody gets may get more. Who says nothing has not asked to."""
        if self._tells_everybody:
            return True
        if not asker.authorization and asker.certificate is None:
            return False
        return await self.admit(asker) is Admission.ALLOWED

    @property
    def _tells_everybody(self) -> bool:
        guard = self._guard()
        is_closed = self._is_closed if guard is None else guard.loader.mode == "closed"
        return not is_closed and not self._ways

    async def _subject(self, asker: Asker) -> Subject:
        """Raises `NotAuthenticated`."""
        if not self._ways:
            return Subject(host=asker.host, door=self._door)
        from penstock.security.authentication import Peer
        from penstock.security.refusal import NotAuthenticated

        if not asker.authorization:
            subject = self._recognise(asker.certificate, asker.host)
            if subject is None:
                raise NotAuthenticated("HTTP: nothing says who it is")
            return subject
        guard = self._guard()
        assert guard is not None
        return await guard.authenticator.authenticate(self._read(asker.authorization), Peer(asker.host, self._door))

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
        raise NotAuthenticated("HTTP: no password or key of a kind that is taken here")  # it may be one without a word
