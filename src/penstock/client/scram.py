"""SCRAM (RFC 5802, RFC 7677), the client's side: proves a password without saying it, and holds the server to the same.

    first ──► the server's salt ──► final ──► the server's signature, which only who has the user's keys can make

Names and passwords are UTF-8 as they are, without SASLprep, as Kafka's own clients send them.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final

MIN_ITERATIONS: Final = 4096
"""Fewer would make a password easy to find for whoever pretends to be the server."""
MAX_ITERATIONS: Final = 1_000_000
"""More would be work for minutes that anybody who pretends to be the server could give us."""
_HEADER: Final = "n,,"
_DIGESTS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class ScramError(ValueError):
    """The server said what SCRAM does not allow, or cannot prove that it knows the user."""


class ScramClient:
    """One exchange; `first`, `final` and `check`, each once and in this order."""

    def __init__(self, mechanism: str, username: str, password: str) -> None:
        self._digest = _DIGESTS[mechanism]
        self._password = password.encode()
        self._nonce = draw_nonce()
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return f"{_HEADER}{self._bare}".encode()

    def final(self, told: bytes) -> bytes:
        """The proof, for the server's salt. Raises `ScramError`."""
        fields = _fields(told)
        nonce, salt, iterations = fields.get("r", ""), _decode(fields.get("s", "")), fields.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("it answers another exchange")
        if not (iterations.isascii() and iterations.isdecimal() and len(iterations) < 10):
            raise ScramError("it does not say how often the password is hashed")
        if not MIN_ITERATIONS <= int(iterations) <= MAX_ITERATIONS:
            raise ScramError(f"it hashes {iterations} times; allowed: {MIN_ITERATIONS} to {MAX_ITERATIONS}")
        salted = hashlib.pbkdf2_hmac(self._digest, self._password, salt, int(iterations))
        head = f"c={_encode(_HEADER.encode())},r={nonce}"
        message = b",".join([self._bare.encode(), told, head.encode()])
        client_key = hmac.digest(salted, b"Client Key", self._digest)
        stored_key = hashlib.new(self._digest, client_key).digest()
        signature = hmac.digest(stored_key, message, self._digest)
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", self._digest), message, self._digest)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        return f"{head},p={_encode(proof)}".encode()

    def check(self, told: bytes) -> None:
        """Raises `ScramError` for a server that does not know the user."""
        if not hmac.compare_digest(_decode(_fields(told).get("v", "")), self._signature):
            raise ScramError("it cannot prove that it knows the user")


def draw_nonce() -> str:
    return secrets.token_urlsafe(24)


def _fields(told: bytes) -> dict[str, str]:
    """Raises `ScramError`, also for an error that the server tells."""
    try:
        parts = [part.partition("=") for part in told.decode().split(",")]
    except UnicodeDecodeError:
        raise ScramError("its answer is no text") from None
    found = {name: value for name, _, value in parts}
    if "e" in found:
        raise ScramError(f"it says {found['e'][:100]!r}")
    if "m" in found:
        raise ScramError("it wants an extension of SCRAM that is not known here")
    return found


def _decode(text: str) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not found:
        raise ScramError("its answer lacks what proves it")
    return found


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()
