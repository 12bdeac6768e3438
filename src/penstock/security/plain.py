"""SASL PLAIN (RFC 4616): `[authzid] NUL user NUL password`."""

from typing import Final, NamedTuple

from penstock.security.refusal import NotAuthenticated
from penstock.security.secret import Secret

MAX_MESSAGE_BYTES: Final = 4096


class Plain(NamedTuple):
    user: str
    password: Secret


def parse_plain(said: bytes) -> Plain:
    """Whom somebody says to be. Who names an authorization id has to name the user. Raises `NotAuthenticated`."""
    if len(said) > MAX_MESSAGE_BYTES:
        raise NotAuthenticated(f"PLAIN: a message of {len(said)} bytes")
    parts = bytes(said).split(b"\0")
    if len(parts) != 3:
        raise NotAuthenticated(f"PLAIN: {len(parts)} parts")
    authzid, user, password = parts
    if not user or not password:
        raise NotAuthenticated("PLAIN: no user or no password")
    if authzid not in (b"", user):
        raise NotAuthenticated("PLAIN: it wants to act for somebody else")
    try:
        password.decode()
        return Plain(user.decode(), Secret(password))
    except UnicodeDecodeError:
        raise NotAuthenticated("PLAIN: not UTF-8") from None
