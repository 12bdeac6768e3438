"""Who somebody is: what every door asks, whatever proof it was given. One answer: a subject, or one error of one text.

What is wrong with a proof is known to our logs alone (`NotAuthenticated.reason`). Who guesses has to wait, by address
and user (`backoff`), whether there is such a user or not; what comes before its time is not looked at.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, assert_never

from penstock.engine.access import Subject
from penstock.observe.stats import FAILED, SUCCEEDED, TOO_EARLY
from penstock.ports.clock import Clock
from penstock.ports.randomness import Randomness
from penstock.security.api_keys import ApiKey, parse_key
from penstock.security.backoff import Backoff
from penstock.security.decoys import Models, decoy_keys, decoy_password, make_secret
from penstock.security.directory import Directory, User
from penstock.security.key_changes import UsedKeys
from penstock.security.loader import Loader
from penstock.security.methods import OF_USERS, Method
from penstock.security.names import name_problem, user_principal
from penstock.security.passwords import Passwords
from penstock.security.plain import Plain, parse_plain
from penstock.security.refusal import NotAuthenticated
from penstock.security.scram import ClientFirst, Mechanism, ScramExchange, ScramKeys, ScramProof
from penstock.security.secret import Secret

__all__ = ["Authenticator", "Certificate", "Credentials", "Key", "Peer", "Plain", "Proof", "ScramLogin", "parse_plain"]

OLDEST_RULES_S: Final = 3600.0
_MAX_CERTIFICATE_NAME_BYTES: Final = 1024


class Key(NamedTuple):
    """An API key, as it was said."""

    text: Secret


class Certificate(NamedTuple):
    """The name in a certificate that our side of TLS trusts, as the listener's rules have mapped it."""

    name: str


class Proof(NamedTuple):
    """A SCRAM exchange that is done, and what the keys it was about were changed last at."""

    scram: ScramProof
    credential_revision: int


Credentials = Plain | Key | Certificate | Proof


class Peer(NamedTuple):
    """Where somebody comes from (its address, without a port), and by which door."""

    host: str
    door: str


class TooEarly(NotAuthenticated):
    """After a failure, before it was time for the next attempt."""

    def __init__(self) -> None:
        super().__init__("too early after a failure")


class Authenticator:
    """Args:
    oldest_rules_s: nobody logs in by rules that the store has not confirmed for longer.
    """

    def __init__(
        self,
        loader: Loader,
        clock: Clock,
        randomness: Randomness,
        passwords: Passwords,
        used: UsedKeys,
        *,
        oldest_rules_s: float = OLDEST_RULES_S,
    ) -> None:
        self._loader = loader
        self._clock = clock
        self._randomness = randomness
        self._own_decoy = make_secret(randomness)  # until there is the cluster's
        self._passwords = passwords
        self._used = used
        self._oldest_rules_s = oldest_rules_s
        self._backoff = Backoff()
        self.logins: dict[tuple[str, str], int] = {}
        """How many there were, by method and outcome; whoever gives out figures puts its own here."""

    async def authenticate(self, credentials: Credentials, peer: Peer) -> Subject:
        """Who that is. Raises `NotAuthenticated`, whatever was wrong."""
        match credentials:
            case Plain():
                with self.counting(Method.PASSWORD):
                    return await self._by_password(credentials, peer)
            case Key():
                with self.counting(Method.API_KEY):
                    return self._by_key(credentials, peer)
            case Certificate():
                return self.recognise(credentials, peer)
            case Proof():
                with self.counting(Method.SCRAM):
                    return self._by_scram(credentials, peer)
            case _:
                assert_never(credentials)

    def begin_scram(self, mechanism: Mechanism, peer: Peer) -> "ScramLogin":
        """For one login, or one that repeats it on the same connection."""
        return ScramLogin(self, mechanism, peer)

    def is_valid(self, subject: Subject) -> bool:
        """Whether somebody may stay: to be asked for every connection when the loader has told of a change."""
        directory = self._loader.directory
        if directory is None or (subject.until_ms and self._clock.now_ms() >= subject.until_ms):
            return False
        user = directory.users.get(subject.principal.partition(":")[2])
        if subject.method == Method.CERTIFICATE:
            return user is None or (user.is_enabled and user.may_use_certificate)
        if subject.method not in OF_USERS:
            return True
        key = directory.keys.get(subject.key)
        has_key = not subject.key or (key is not None and not key.has_ended(self._clock.now_ms()))
        return has_key and user is not None and user.is_enabled

    @contextmanager
    def counting(self, method: Method) -> Iterator[None]:
        """Count what comes of a login."""
        try:
            yield
        except NotAuthenticated as error:
            self.count_failure(method, error)
            raise
        self._count(method, SUCCEEDED)

    def count_failure(self, method: Method, error: NotAuthenticated) -> None:
        self._count(method, TOO_EARLY if isinstance(error, TooEarly) else FAILED)

    def _count(self, method: Method, outcome: str) -> None:
        counted = method.value, outcome
        self.logins[counted] = self.logins.get(counted, 0) + 1

    # --- one for each kind of proof

    async def _by_password(self, said: Plain, peer: Peer) -> Subject:
        user = said.user
        self.check_time(peer, user)
        directory = self._directory()
        if name_problem(user):
            raise self._failed(peer, user, "PLAIN: no such user")
        mechanism, keys, revision = self._keys_of(directory, user)
        known = self._usable(directory, user) is not None and revision > 0
        fits = await self._passwords.check(user, said.password, mechanism, keys, revision, peer.host)
        self.check_time(peer, user)  # others may have failed meanwhile
        if not (fits and known):
            raise self._failed(peer, user, "PLAIN: wrong password" if known else "PLAIN: no such user")
        now = self._directory()
        if self._usable(now, user) is None or now.credentials[user].revision != revision:
            raise NotAuthenticated("PLAIN: the user was changed meanwhile")
        self._backoff.succeeded(peer.host, user)
        return self._subject(user, peer, Method.PASSWORD)

    def _by_key(self, said: Key, peer: Peer) -> Subject:
        key_id, digest = parse_key(said.text.reveal())
        self.check_time(peer, key_id)
        directory = self._directory()
        key = directory.keys.get(key_id)
        fits = Secret(digest) == Secret(key.digest if key is not None else _NO_DIGEST)
        problem = self._key_problem(directory, key) if fits else "wrong or not there"
        if key is None or problem:
            raise self._failed(peer, key_id, f"API key: {problem}")
        self._backoff.succeeded(peer.host, key_id)
        self._used.note(key_id, self._clock.now_ms())
        return self._subject(key.user, peer, Method.API_KEY, key)

    def recognise(self, said: Certificate, peer: Peer) -> Subject:
        """Who has a certificate, which TLS has checked. Raises `NotAuthenticated`."""
        with self.counting(Method.CERTIFICATE):
            return self._by_certificate(said, peer)

    def _by_certificate(self, said: Certificate, peer: Peer) -> Subject:
        problem = name_problem(said.name, _MAX_CERTIFICATE_NAME_BYTES)
        if problem or said.name in ("*", "ANONYMOUS"):
            raise NotAuthenticated(f"certificate: {problem or 'its name stands for others'}")
        user = self._directory().users.get(said.name)
        if user is not None and not (user.is_enabled and user.may_use_certificate):
            raise NotAuthenticated("certificate: the name of a user that may not come by one")
        return self._subject(said.name, peer, Method.CERTIFICATE)

    def _by_scram(self, said: Proof, peer: Peer) -> Subject:
        directory = self._directory()
        user = said.scram.user
        kept = directory.credentials.get(user)
        if self._usable(directory, user) is None or kept is None or kept.revision != said.credential_revision:
            raise self._failed(peer, user, "SCRAM: the user may not log in, or was changed meanwhile")
        self._backoff.succeeded(peer.host, user)
        return self._subject(user, peer, Method.SCRAM)

    # --- for the exchange of SCRAM

    def make_exchange(self, mechanism: Mechanism, find: Callable[[ClientFirst], ScramKeys | None]) -> ScramExchange:
        return ScramExchange(
            mechanism, find, lambda user: decoy_keys(*self._decoys(), mechanism, user), self._randomness
        )

    def find_scram(self, user: str, mechanism: Mechanism) -> tuple[ScramKeys | None, int]:
        """The keys of a user, and what they were changed last at. Whether it may log in is asked in the end."""
        kept = self._directory().credentials.get(user)
        return (None, 0) if kept is None else (kept.keys.get(mechanism), kept.revision)

    def check_time(self, peer: Peer, user: str) -> None:
        """Raises `NotAuthenticated` for an attempt that comes too early: it is not looked at, so it tells nothing."""
        if self._backoff.wait_s(peer.host, user, self._clock.monotonic()) > 0:
            raise TooEarly

    def note_failure(self, peer: Peer, user: str) -> None:
        self._backoff.failed(peer.host, user, self._clock.monotonic())

    # --- steps

    def _directory(self) -> Directory:
        directory = self._loader.directory
        if directory is None:
            raise NotAuthenticated("the rules are not loaded yet")
        if self._loader.age_s() > self._oldest_rules_s:
            raise NotAuthenticated(f"the rules are {self._loader.age_s():.0f} s old; the metadata store is away")
        return directory

    def _usable(self, directory: Directory, name: str) -> User | None:
        user = directory.users.get(name)
        return user if user is not None and user.is_enabled else None

    def _key_problem(self, directory: Directory, key: ApiKey | None) -> str:
        if key is None or self._usable(directory, key.user) is None:
            return "its user is not there"
        return "it has ended" if key.has_ended(self._clock.now_ms()) else ""

    def _keys_of(self, directory: Directory, user: str) -> tuple[Mechanism, ScramKeys, int]:
        decoy = decoy_password(*self._decoys(), user)  # made in any case: the same work
        kept = directory.credentials.get(user)
        if kept is not None:
            for mechanism in Mechanism:
                if mechanism in kept.keys:
                    return mechanism, kept.keys[mechanism], kept.revision
        return *decoy, 0

    def _decoys(self) -> tuple[bytes, Models]:
        """What keys of users that are not there are drawn by, and what they are to be like."""
        directory = self._loader.directory or Directory()
        return directory.decoy.reveal() if directory.decoy is not None else self._own_decoy, directory.models

    def _failed(self, peer: Peer, user: str, reason: str) -> NotAuthenticated:
        self.note_failure(peer, user)
        return NotAuthenticated(reason)

    def _subject(self, name: str, peer: Peer, method: Method, key: ApiKey | None = None) -> Subject:
        principal = user_principal(name)
        if key is None:
            return Subject(principal, peer.host, peer.door, method)
        return Subject(principal, peer.host, peer.door, method, key.id, key.until_ms)


_NO_DIGEST: Final = "0" * 64


class ScramLogin:
    """One exchange of SCRAM on a connection, and who it was.

    Attributes:
        subject: given once the exchange is done.
    """

    def __init__(self, authenticator: Authenticator, mechanism: Mechanism, peer: Peer) -> None:
        self.subject: Subject | None = None
        self._authenticator = authenticator
        self._mechanism = mechanism
        self._peer = peer
        self._exchange = authenticator.make_exchange(mechanism, self._find)
        self._credential_revision = 0

    async def step(self, said: bytes) -> bytes:
        """Our answer to the client's next message. Raises `NotAuthenticated`."""
        try:
            if self._exchange.user:  # others may have failed since it began
                self._authenticator.check_time(self._peer, self._exchange.user)
            answer = self._exchange.step(said)
        except TooEarly as error:
            self._authenticator.count_failure(Method.SCRAM, error)
            self.subject = None
            self._exchange.give_up()
            raise
        except NotAuthenticated as error:
            self._authenticator.count_failure(Method.SCRAM, error)
            self.subject = None
            if self._exchange.user:
                self._authenticator.note_failure(self._peer, self._exchange.user)
            raise
        if self._exchange.proof is not None:
            proof = Proof(self._exchange.proof, self._credential_revision)
            self.subject = await self._authenticator.authenticate(proof, self._peer)
        return answer

    def _find(self, said: ClientFirst) -> ScramKeys | None:
        self._authenticator.check_time(self._peer, said.user)
        if said.is_token:  # delegation tokens are not kept yet
            return None
        keys, self._credential_revision = self._authenticator.find_scram(said.user, self._mechanism)
        return keys
