"""How a client proves who it is: PLAIN or SCRAM, by what `security` knows of users. See `kafka_wire.guest.Login`.

    mechanism ──► messages of it ──► known, or never

One step at a time: a message that comes while one is looked at ends the exchange.

PLAIN carries a user's password, or an API key in its place; who says a key calls itself by what of it may be shown.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from penstock.engine.access import Subject
from penstock.protocols.kafka_wire.guest import NotProven
from penstock.security.api_keys import is_key_of
from penstock.security.authentication import Authenticator, Credentials, Key, Peer, ScramLogin, parse_plain
from penstock.security.refusal import TEXT, NotAuthenticated
from penstock.security.scram import Mechanism

PLAIN: Final = "PLAIN"


class _Expected(StrEnum):
    MECHANISM = "a mechanism"
    MESSAGE = "a message"
    NOTHING = "nothing"
    NEVER = "nothing more"


class ClientLogin:
    """Args:
    mechanisms: those that the listener takes: `PLAIN`, those of SCRAM.
    takes_passwords: whether PLAIN may carry a password.
    takes_keys: whether it may carry an API key.
    """

    refusal: Final = TEXT

    def __init__(
        self,
        authenticator: Authenticator,
        mechanisms: Sequence[str],
        peer: Peer,
        *,
        takes_passwords: bool = True,
        takes_keys: bool = False,
    ) -> None:
        self.mechanisms = mechanisms
        self._takes_passwords = takes_passwords
        self._takes_keys = takes_keys
        self.subject: Subject | None = None
        self._authenticator = authenticator
        self._peer = peer
        self._scram: ScramLogin | None = None
        self._expected = _Expected.MECHANISM
        self._is_broken = False

    @property
    def has_failed(self) -> bool:
        return self._expected is _Expected.NEVER

    def choose(self, mechanism: str) -> bool:
        self._expect(_Expected.MECHANISM)
        if mechanism not in self.mechanisms:
            return False
        self._expected = _Expected.MESSAGE
        self._scram = None if mechanism == PLAIN else self._authenticator.begin_scram(Mechanism(mechanism), self._peer)
        return True

    async def step(self, said: bytes) -> bytes:
        self._expect(_Expected.MESSAGE)
        try:
            answer = await self._step(said)
        except NotAuthenticated as refusal:
            raise NotProven(refusal.reason) from None
        if self._is_broken:
            self.subject = None
            raise NotProven("more was said while this step was looked at")
        self._expected = _Expected.MESSAGE if self.subject is None else _Expected.NOTHING
        return answer

    async def _step(self, said: bytes) -> bytes:
        scram = self._scram
        if scram is None:
            self.subject = await self._authenticator.authenticate(self._read_plain(said), self._peer)
            return b""
        answer = await scram.step(said)
        self.subject = scram.subject
        return answer

    def _read_plain(self, said: bytes) -> Credentials:
        """Raises `NotAuthenticated`."""
        plain = parse_plain(said)
        if self._takes_keys and is_key_of(plain.user, plain.password):
            return Key(plain.password)
        if not self._takes_passwords:
            raise NotAuthenticated("PLAIN: no API key, and passwords are not taken here")
        return plain

    def _expect(self, step: _Expected) -> None:
        """From now on nothing is expected, unless the step goes well. Raises `NotProven`."""
        expected = self._expected
        if expected is not _Expected.NOTHING:
            self._expected = _Expected.NEVER
        if expected is not step:
            self._is_broken = expected is not _Expected.NOTHING
            raise NotProven(f"not the time for this step; expected: {expected}")
