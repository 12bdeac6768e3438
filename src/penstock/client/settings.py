"""Where the brokers are and how to talk to them: plain values that may be sent to other processes."""

from dataclasses import dataclass
from typing import Final

from penstock.client.errors import ClientError
from penstock.client.security import PLAINTEXT, Security

Address = tuple[str, int]

_DEFAULT_PORT: Final = 9092


@dataclass(frozen=True, slots=True)
class Settings:
    """
    Attributes:
        bootstrap: `host:port`, or several with commas.
        timeout_s: for each connection and each answer.
        patience_s: how long topics and offsets are asked for again when no broker answers at all.
        receive_buffer_bytes: the kernel's, for each connection; 0 or less leaves it to the kernel.
    """

    bootstrap: str
    security: Security = PLAINTEXT
    timeout_s: float = 30.0
    client_id: str = "penstock"
    receive_buffer_bytes: int = 1 << 20
    patience_s: float = 0.0

    def addresses(self) -> list[Address]:
        """Raises `ClientError` for a word that is no address, or where there is none."""
        found = [parse_address(word) for word in map(str.strip, self.bootstrap.split(",")) if word]
        if not found:
            raise ClientError(f"bootstrap servers {self.bootstrap!r}: no HOST:PORT is named")
        return list(dict.fromkeys(found))


def parse_address(word: str) -> Address:
    """`host:port`, `[::1]:9092`, `host`; a listener's name before `://` is left out. Raises `ClientError`."""
    host, colon, port = word.rpartition("://")[2].rpartition(":")
    if not colon:
        return port, _DEFAULT_PORT
    if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) <= 65_535:
        raise ClientError(f"{word!r} is no HOST:PORT")
    return host.strip("[]"), int(port)


def format_address(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
