"""How brokers prove to each other that they are of one cluster: by a secret they share, with SCRAM-SHA-256 (RFC 5802).

The exchange is carried by SaslHandshake and SaslAuthenticate as a client's would be. Neither side tells the secret, and
each proves that it has it. SCRAM itself is `scramp`'s, which draws a fresh nonce for each exchange and compares it in
the last message, so nothing that was overheard can be said again.

The secret is made dear to guess once per process; the key that comes of it is the password in SCRAM. Its own rounds
can therefore be the fewest that `scramp` allows, and a connection costs a millisecond.
"""

import hashlib
import hmac
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from penstock.engine.access import BROKERS, Subject
from penstock.protocols.kafka_wire.guest import NotProven

MECHANISM: Final = "SCRAM-SHA-256"
_STRETCH_ROUNDS: Final = 100_000
_STRETCH_SALT: Final = b"penstock cluster secret"
_STORE_LABEL: Final = b"penstock metadata store"
_SCRAM_ROUNDS: Final = 4096
_LONGEST_MESSAGE: Final = 4096
_LONGEST_NAME: Final = 100


def broker_name(broker_id: int) -> str:
    """What a broker calls itself."""
    return f"broker-{broker_id}"


def _nobody(name: str, proved: bool) -> None:
    return None


@lru_cache(maxsize=8)
def _stretch(secret: str) -> str:
    return hashlib.pbkdf2_hmac("sha256", secret.encode(), _STRETCH_SALT, _STRETCH_ROUNDS).hex()


class Identity:
    """What makes a broker a member of its cluster.

    Args:
        secret: the same on all brokers.
        name: what this broker calls itself, for the others' logs.
    """

    def __init__(self, secret: str, name: str = "broker") -> None:
        self.name = name
        self._key = _stretch(secret)
        self._scramp = import_module("scramp")  # only here: it takes a while, and a broker alone has no secret
        self._mechanism = self._scramp.ScramMechanism(MECHANISM)
        self._known = self._mechanism.make_auth_info(self._key, _SCRAM_ROUNDS)

    def __repr__(self) -> str:
        return f"Identity(name={self.name!r})"

    @property
    def store_key(self) -> bytes:
        """Another key of the same secret, for what brokers prove in the metadata store."""
        return hmac.digest(bytes.fromhex(self._key), _STORE_LABEL, hashlib.sha256)

    def make_login(self, judged: Callable[[str, bool], None] = _nobody) -> "Login":
        """For one connection that somebody made to us; `judged` hears who has proved itself, and who could not."""
        return Login(self._mechanism, self._known, self._scramp.ScramException, judged)

    def make_proof(self) -> "Proof":
        """For one connection that we made."""
        return Proof(self._scramp.ScramClient([MECHANISM], self.name, self._key), self._scramp.ScramException)


class Login:
    """The accepting side: a mechanism is chosen, two messages come, and the peer is known, or never will be.

    See `kafka_wire.guest.Login`.
    """

    mechanisms: Final = (MECHANISM,)
    refusal: Final = "authentication failed; brokers of a cluster need the same secret"

    def __init__(
        self,
        mechanism: Any,
        known: tuple[bytes, bytes, bytes, int],
        failure: type[Exception],
        judged: Callable[[str, bool], None],
    ) -> None:
        self._server = mechanism.make_server(self._find)
        self._failure = failure
        self._known = known
        self._judged = judged
        self._expected = "mechanism"
        self.name = ""
        """What the peer calls itself; proven when `is_done`."""

    @property
    def is_done(self) -> bool:
        return self._expected == "nothing"

    @property
    def subject(self) -> Subject | None:
        return BROKERS if self.is_done else None

    @property
    def has_failed(self) -> bool:
        return self._expected == "never"

    def choose(self, mechanism: str) -> bool:
        """Whether the mechanism is the one spoken here. Raises `NotProven` when it is not the time to choose one."""
        self._expect("mechanism")
        if mechanism != MECHANISM:
            self._expected = "never"
            return False
        self._expected = "first"
        return True

    async def step(self, said: bytes) -> bytes:
        """Our answer to the peer's next message. Raises `NotProven`."""
        try:
            answer = self._step(said)
        except NotProven:
            self._judged(self.name, False)
            raise
        if self.is_done:
            self._judged(self.name, True)
        return answer

    def _step(self, said: bytes) -> bytes:
        is_first = self._expected == "first"
        if not is_first:
            self._expect("final")
        self._expected = "never"
        if len(said) > _LONGEST_MESSAGE:
            raise NotProven(f"a message of {len(said)} bytes; allowed: {_LONGEST_MESSAGE}")
        server = self._server
        try:
            if is_first:
                server.set_client_first(said.decode())
                answer: str = server.get_server_first()
            else:
                server.set_client_final(said.decode())
                answer = server.get_server_final()
        except (self._failure, UnicodeDecodeError) as error:
            raise NotProven(f"{self.name or 'the peer'} did not prove that it knows the secret: {error}") from None
        self._expected = "final" if is_first else "nothing"
        return answer.encode()

    def _find(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        """All brokers have one secret, whatever they call themselves."""
        self.name = name[:_LONGEST_NAME]
        return self._known

    def _expect(self, step: str) -> None:
        if self._expected != step:
            expected = self._expected
            if not self.is_done:
                self._expected = "never"
            raise NotProven(f"not the time for this step; expected: {expected}")


class Proof:
    """The connecting side."""

    def __init__(self, client: Any, failure: type[Exception]) -> None:
        self._client = client
        self._failure = failure

    def first(self) -> bytes:
        said: str = self._client.get_client_first()
        return said.encode()

    def answer(self, challenge: bytes) -> bytes:
        """Raises `NotProven`."""
        try:
            self._client.set_server_first(challenge.decode())
            if int(self._client.iterations) != _SCRAM_ROUNDS:
                raise NotProven(f"it asks for {self._client.iterations} rounds; brokers ask for {_SCRAM_ROUNDS}")
            said: str = self._client.get_client_final()
        except (self._failure, UnicodeDecodeError) as error:
            raise NotProven(str(error)) from None
        return said.encode()

    def check(self, verdict: bytes) -> None:
        """Raises `NotProven` when the other side does not know the secret."""
        try:
            self._client.set_server_final(verdict.decode())
        except (self._failure, UnicodeDecodeError) as error:
            raise NotProven(f"it does not know the secret: {error}") from None
