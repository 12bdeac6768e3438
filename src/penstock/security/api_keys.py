"""API keys: `pk_{id}_{32 random bytes}`. The id may be shown; of the rest a SHA-256 is kept, for it cannot be guessed.

A key is for a user, and may do what its user may, or less. It may end at a moment, and the hour of its last use is
noted. One that signs requests has its secret kept sealed besides, because a signature is checked by the secret.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.ports.randomness import Randomness
from penstock.security.refusal import NotAuthenticated
from penstock.security.rules import Rule
from penstock.security.secret import Secret

MAX_KEY_CHARS: Final = 100
MAX_KEYS_OF_A_USER: Final = 40
"""All of them go in one transaction, with their user."""
MAX_RULES_OF_A_KEY: Final = 100
_ID_BYTES: Final = 8
_SECRET_BYTES: Final = 32
_FORM: Final = re.compile(r"pk_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is kept of one."""

    id: str
    user: str
    digest: str
    """Of the whole text of it: SHA-256, hexadecimal."""
    made_ms: int
    until_ms: int
    """The moment it ends; 0: never."""
    rules: tuple[Rule, ...] | None
    """What it narrows its user to; None: to nothing."""
    sealed: str
    """Its secret, if it signs; else empty."""
    note: str = ""

    @property
    def shown(self) -> str:
        """What people may see of it."""
        return f"pk_{self.id}_..."

    def has_ended(self, now_ms: int) -> bool:
        return self.until_ms != 0 and now_ms >= self.until_ms


class NewKey(NamedTuple):
    """One that was just made: its text is told once, to whom it is for."""

    id: str
    text: Secret
    secret: Secret
    """The part that signs."""


def make_key(randomness: Randomness) -> NewKey:
    key_id = randomness.getrandbits(_ID_BYTES * 8).to_bytes(_ID_BYTES, "big").hex()
    drawn = randomness.getrandbits(_SECRET_BYTES * 8).to_bytes(_SECRET_BYTES, "big")
    secret = base64.urlsafe_b64encode(drawn).decode().rstrip("=")
    return NewKey(key_id, Secret(f"pk_{key_id}_{secret}"), Secret(secret))


def parse_key(said: bytes) -> tuple[str, str]:
    """The id of a key, and the digest of all of it. Raises `NotAuthenticated`."""
    if len(said) > MAX_KEY_CHARS:
        raise NotAuthenticated(f"API key: {len(said)} characters")
    try:
        found = _FORM.fullmatch(bytes(said).decode("ascii"))
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise NotAuthenticated("API key: not of the form of one")
    return found[1], digest_of(Secret(said))


def is_key_of(user: str, text: Secret) -> bool:
    """Whether this looks like the API key that is shown by that name."""
    return user.startswith("pk_") and text.reveal().startswith(f"{user}_".encode())


def digest_of(text: Secret) -> str:
    return hashlib.sha256(text.reveal()).hexdigest()
