"""Secrets that have to be readable, sealed: AES-256-GCM by a key that is not in the metadata store.

What is sealed names its key, and says for which place in the store it was sealed: moved to another place it does not
open. There may be several keys: one seals, all open, so that a key can be replaced while brokers run.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from penstock.errors import Code, PenstockError
from penstock.ports.randomness import Randomness
from penstock.security.secret import Secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_VERSION: Final = "1"
_SALT: Final = b"penstock security"


def derive_key(secret: Secret, purpose: str) -> Secret:
    """HKDF-SHA256 (RFC 5869) of a secret that is not guessable, as the stretched cluster secret is; of 32 bytes."""
    extracted = hmac.digest(_SALT, secret.reveal(), "sha256")
    return Secret(hmac.digest(extracted, purpose.encode() + b"\1", "sha256"))


class SealedAway(PenstockError):
    """What was sealed cannot be opened here."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            Code.NOT_AVAILABLE,
            f"the secret under {path!r} cannot be opened: {why}",
            help="give this broker the cluster secret or the key file that it was sealed by",
        )


class SealingKeys:
    """The keys of this cluster.

    Args:
        sealing: what new secrets are sealed by.
        others: what else there may be secrets sealed by.
    """

    def __init__(self, sealing: Secret, others: Iterable[Secret] = ()) -> None:
        self._keys = {_key_id(key): key for key in (*others, sealing)}
        self._sealing = _key_id(sealing)

    @property
    def current(self) -> str:
        """The id of the key that seals; it tells nothing of the key."""
        return self._sealing

    @property
    def known(self) -> tuple[str, ...]:
        """The ids of all."""
        return tuple(sorted(self._keys))

    def seal(self, path: str, secret: Secret, randomness: Randomness) -> str:
        """For that place in the store alone."""
        nonce = randomness.getrandbits(_NONCE_BYTES * 8).to_bytes(_NONCE_BYTES, "big")
        sealed = _cipher(self._keys[self._sealing]).encrypt(nonce, secret.reveal(), path.encode())
        return f"{_VERSION}:{self._sealing}:{base64.b64encode(nonce + sealed).decode()}"

    def open(self, path: str, sealed: str) -> Secret:
        """Raises `SealedAway`."""
        from cryptography.exceptions import InvalidTag

        version, _, rest = sealed.partition(":")
        key_id, _, body = rest.partition(":")
        if version != _VERSION:
            raise SealedAway(path, f"it is of format {version!r}, and this release knows {_VERSION}")
        key = self._keys.get(key_id)
        if key is None:
            raise SealedAway(path, f"key {key_id!r} is not here")
        try:
            data = base64.b64decode(body, validate=True)
            return Secret(_cipher(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], path.encode()))
        except (InvalidTag, ValueError):
            raise SealedAway(path, "it is damaged, or was sealed for another place") from None

    def is_current(self, sealed: str) -> bool:
        """Whether it is sealed by the key that seals now; else it should be sealed anew."""
        return sealed.startswith(f"{_VERSION}:{self._sealing}:")


def sealing_key_of(sealed: str) -> str:
    """The id of the key that something was sealed by."""
    return sealed.partition(":")[2].partition(":")[0]


def _key_id(key: Secret) -> str:
    assert len(key.reveal()) == KEY_BYTES
    return hashlib.sha256(b"penstock key id" + key.reveal()).hexdigest()[:16]


def _cipher(key: Secret) -> "AESGCM":
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only here: it takes a while

    return AESGCM(key.reveal())
