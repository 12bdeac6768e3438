"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): the server's side, without sockets.

    first --client-first--> final --client-final--> done        any other step, and any failure: never

Names and passwords are UTF-8 as they come, as Kafka's clients send them, without SASLprep. A user that is not there
gets a salt all the same, always the same one, and fails in the last step after the same work as a wrong password. The
nonce is made anew for each exchange and compared in the last message, so nothing that was overheard can be said again.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from penstock.ports.randomness import Randomness
from penstock.security.refusal import NotAuthenticated

ITERATIONS: Final = 10_000
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16_384
"""Kafka's bounds. Clients do this work, and so do we for PLAIN."""
SALT_BYTES: Final = 16
MAX_MESSAGE_BYTES: Final = 4096
_NONCE_BITS: Final = 192
_LETTER: Final = re.compile(r"[A-Za-z]")
_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,512}")
_NAME: Final = re.compile(r"(?:[^=,\0]|=2C|=3D)+")


class Mechanism(StrEnum):
    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def digest(self) -> str:
        """The name of its hash."""
        return "sha256" if self is Mechanism.SHA_256 else "sha512"

    @property
    def size_bytes(self) -> int:
        return 32 if self is Mechanism.SHA_256 else 64


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """What is kept in place of a password. Does not show itself."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int = ITERATIONS


def derive(mechanism: Mechanism, password: bytes, salt: bytes, iterations: int = ITERATIONS) -> ScramKeys:
    """The keys of a password. Takes milliseconds: not on the loop."""
    return of_salted(mechanism, salt_password(mechanism, password, salt, iterations), salt, iterations)


def salt_password(mechanism: Mechanism, password: bytes, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(mechanism.digest, password, salt, iterations)


def of_salted(mechanism: Mechanism, salted: bytes, salt: bytes, iterations: int) -> ScramKeys:
    """The keys of a password that was salted elsewhere, as in Kafka's AlterUserScramCredentials."""
    digest = mechanism.digest
    client_key = hmac.digest(salted, b"Client Key", digest)
    return ScramKeys(
        salt, hashlib.new(digest, client_key).digest(), hmac.digest(salted, b"Server Key", digest), iterations
    )


@dataclass(frozen=True, slots=True)
class ScramProof:
    """That the peer of an exchange knows a user's password. Only a `ScramExchange` that is done makes it."""

    user: str
    mechanism: Mechanism


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """The client's first message, taken apart."""

    gs2_header: str
    bare: str
    authzid: str
    user: str
    nonce: str
    is_token: bool
    """It means a delegation token (KIP-48)."""

    @property
    def account(self) -> str:
        """Whose keys are meant. No user has the name of a token's, or a token's salt would tell whether its name is
        a user's."""
        return f"token\0{self.user}" if self.is_token else self.user


class ScramExchange:
    """One exchange.

    Args:
        find: the keys of a user; None: there is none of the name.
        decoy: keys for an account without any; see `decoys`.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        find: Callable[[ClientFirst], ScramKeys | None],
        decoy: Callable[[str], ScramKeys],
        randomness: Randomness,
    ) -> None:
        self.mechanism: Final = mechanism
        self._find = find
        self._decoy = decoy
        self._randomness = randomness
        self._step = self._first
        self._said = ""
        self._nonce = ""
        self._client_first: ClientFirst | None = None
        self._keys: ScramKeys | None = None
        self._is_known = False
        self._proof: ScramProof | None = None

    @property
    def user(self) -> str:
        """Who the peer says it is, as soon as it has."""
        return self._client_first.user if self._client_first is not None else ""

    @property
    def proof(self) -> ScramProof | None:
        """Given once the exchange is done."""
        return self._proof

    def step(self, said: bytes) -> bytes:
        """Our answer to the client's next message. Raises `NotAuthenticated`, and from then on always."""
        step, self._step = self._step, self._never
        answer = step(_text(said))
        return answer.encode()

    def give_up(self) -> None:
        """No step can be right any more."""
        self._step = self._never
        self._proof = None

    def _first(self, said: str) -> str:
        client_first = self._client_first = parse_client_first(said)
        decoy = self._decoy(client_first.account)  # made in any case: the same work
        found = self._find(client_first)
        self._is_known = found is not None
        keys = self._keys = found or decoy
        nonce = client_first.nonce + _base64(
            self._randomness.getrandbits(_NONCE_BITS).to_bytes(_NONCE_BITS // 8, "big")
        )
        self._nonce = nonce
        self._said = f"r={nonce},s={_base64(keys.salt)},i={keys.iterations}"
        self._step = self._final
        return self._said

    def _final(self, said: str) -> str:
        client_first, keys = self._client_first, self._keys
        assert client_first is not None and keys is not None
        without_proof, binding, nonce, proof = parse_client_final(said)
        if binding != client_first.gs2_header.encode():
            raise NotAuthenticated("SCRAM: the last message is bound to another first one")
        if not hmac.compare_digest(nonce.encode(), self._nonce.encode()):
            raise NotAuthenticated("SCRAM: the nonce is not the one of this exchange")
        if len(proof) != self.mechanism.size_bytes:
            raise NotAuthenticated(f"SCRAM: a proof of {len(proof)} bytes")
        digest = self.mechanism.digest
        message = f"{client_first.bare},{self._said},{without_proof}".encode()
        signature = hmac.digest(keys.stored_key, message, digest)
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        fits = hmac.compare_digest(hashlib.new(digest, client_key).digest(), keys.stored_key)
        answer = f"v={_base64(hmac.digest(keys.server_key, message, digest))}"
        if not (fits and self._is_known):
            raise NotAuthenticated(f"SCRAM: {'wrong password' if self._is_known else 'no such user'}")
        if client_first.authzid not in ("", client_first.user):
            raise NotAuthenticated("SCRAM: it wants to act for somebody else")
        self._proof = ScramProof(client_first.user, self.mechanism)
        return answer

    def _never(self, said: str) -> str:
        raise NotAuthenticated("SCRAM: a step out of order")


def parse_client_first(said: str) -> ClientFirst:
    """Raises `NotAuthenticated`."""
    parts = said.split(",", 2)
    if len(parts) != 3:
        raise NotAuthenticated("SCRAM: the first message has too few parts")
    flag, authzid, bare = parts
    if flag not in ("n", "y"):  # y: it could bind to the channel, and has seen that we do not offer to
        raise NotAuthenticated("SCRAM: binding to a channel is not offered")
    if authzid and not authzid.startswith("a="):
        raise NotAuthenticated("SCRAM: not an authorization id")
    fields = list(_attributes(bare))
    if [name for name, _ in fields[:2]] != ["n", "r"]:  # an extension it insists on would be the first
        raise NotAuthenticated("SCRAM: the first message does not begin with name and nonce")
    nonce = fields[1][1]
    if not _NONCE.fullmatch(nonce):
        raise NotAuthenticated("SCRAM: no nonce")
    user = _name(fields[0][1])
    meant = _name(authzid[2:]) if authzid else ""
    is_token = ("tokenauth", "true") in fields[2:]
    return ClientFirst(f"{flag},{authzid},", bare, meant, user, nonce, is_token)


def parse_client_final(said: str) -> tuple[str, bytes, str, bytes]:
    """What stands before the proof, what it is bound to, the nonce, the proof. Raises `NotAuthenticated`."""
    without_proof, separator, proof = said.rpartition(",p=")
    fields = list(_attributes(without_proof))
    if not separator or [name for name, _ in fields[:2]] != ["c", "r"]:
        raise NotAuthenticated("SCRAM: the last message has not binding, nonce and proof")
    if any(name == "m" for name, _ in fields):
        raise NotAuthenticated("SCRAM: an extension that is not known here")
    return without_proof, _unbase64(fields[0][1]), fields[1][1], _unbase64(proof)


def _attributes(said: str) -> Iterator[tuple[str, str]]:
    for part in said.split(","):
        name, separator, value = part.partition("=")
        if not separator or not value or not _LETTER.match(name):
            raise NotAuthenticated("SCRAM: not an attribute")
        yield name, value


def _name(said: str) -> str:
    if not _NAME.fullmatch(said):
        raise NotAuthenticated("SCRAM: not a name")
    return said.replace("=2C", ",").replace("=3D", "=")


def _text(said: bytes) -> str:
    if len(said) > MAX_MESSAGE_BYTES:
        raise NotAuthenticated(f"SCRAM: a message of {len(said)} bytes")
    try:
        return bytes(said).decode()
    except UnicodeDecodeError:
        raise NotAuthenticated("SCRAM: not UTF-8") from None


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _unbase64(said: str) -> bytes:
    """Of the one spelling that there is for each value."""
    try:
        found = base64.b64decode(said, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if _base64(found) != said:
        raise NotAuthenticated("SCRAM: not base64")
    return found
