"""A client of SCRAM for tests, which does as it is told: also what no client should."""

import base64
import hashlib
import hmac

from penstock.security.scram import Mechanism


class ScramClient:
    """Says names and passwords in plain UTF-8, as Kafka's clients do."""

    def __init__(
        self,
        mechanism: Mechanism,
        user: str,
        password: str,
        *,
        nonce: str = "fyko+d2lbbFgONRv9qkxdawL",
        gs2: str = "n,,",
        extensions: str = "",
    ) -> None:
        self.mechanism = mechanism
        self.password = password.encode()
        self.gs2 = gs2
        self.bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}{extensions}"
        self.server_signature = b""

    def first(self) -> bytes:
        return (self.gs2 + self.bare).encode()

    def final(
        self,
        told: bytes,
        *,
        nonce: str | None = None,
        binding: bytes | None = None,
        cut: int | None = None,
        extensions: str = "",
    ) -> bytes:
        """The last message for what the server has said; `cut` is how many bytes of the proof are sent."""
        digest = self.mechanism.digest
        fields = dict(part.split("=", 1) for part in told.decode().split(","))
        salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac(digest, self.password, salt, iterations)
        bound = base64.b64encode(self.gs2.encode() if binding is None else binding).decode()
        head = f"c={bound},r={fields['r'] if nonce is None else nonce}{extensions}"
        message = f"{self.bare},{told.decode()},{head}".encode()
        client_key = hmac.digest(salted, b"Client Key", digest)
        signature = hmac.digest(hashlib.new(digest, client_key).digest(), message, digest)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))[:cut]
        self.server_signature = hmac.digest(hmac.digest(salted, b"Server Key", digest), message, digest)
        return f"{head},p={base64.b64encode(proof).decode()}".encode()

    def believes(self, told: bytes) -> bool:
        return told == b"v=" + base64.b64encode(self.server_signature)
