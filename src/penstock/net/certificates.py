"""What a listener shows, and whom it trusts, from PEM files that may change while it runs.

A load is all or nothing: every file is read and checked in a thread, new contexts are built, and only when all of it is
good do they take the place of the old ones, which the next connection sees. If anything is wrong the old ones stay, and
the log names the file and the reason. A context itself is never changed, since OpenSSL cannot take an authority or a
list of revoked certificates out of one again.

Which certificates are revoked is looked up here, not in OpenSSL: it looks only during a handshake in full, so that a
revoked client would come back with an earlier session (RFC 5246 §7.3), and it refuses everybody when it is to look and
has no list.
"""

import asyncio
import os
import ssl
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock import obstacles
from penstock.errors import StartupError, WrongSettings
from penstock.net.revocation import PlainName, Revoked, load_revoked, plain_name
from penstock.net.tls import harden, read_pem, reason_of
from penstock.observe.logs import get_logger
from penstock.ports.clock import Clock
from penstock.private_files import is_private, tell_way_out

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

log_ = get_logger("tls")

LOOK_S: Final = 5.0
"""How often files and the ends of certificates are looked at."""
_ENDED_PER_S: Final = 1 / 60
_KNOWN: Final = 4096  # peers' certificates that are not parsed again at each look


class ClientAuth(StrEnum):
    """Whether clients are asked for a certificate; one that is shown has to be good in any case."""

    NONE = "none"
    REQUEST = "request"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """
    Attributes:
        certificate: with those between it and the authority behind it.
        key: its private key, readable by nobody else; may be the same file.
        password_file: what the key is encrypted with, if it is.
    """

    certificate: str
    key: str
    password_file: str | None = None


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """
    Attributes:
        shown: to who asks for no name, or for one that nobody knows.
        by_name: to who asks for this name; `*.example.com` is any name one level below.
        authority: whose certificates are trusted; None asks nobody for one, and trusts of servers whom the operating
            system trusts.
        revoked: the authority's list of certificates that are not good any more (CRL, PEM).
        protocols: to agree on by ALPN, best first.
    """

    shown: KeyPair
    by_name: Mapping[str, KeyPair] = field(default_factory=dict)
    authority: str | None = None
    revoked: str | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    protocols: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """All files."""
        pairs = (self.shown, *self.by_name.values())
        named = [path for pair in pairs for path in (pair.certificate, pair.key, pair.password_file)]
        return tuple(dict.fromkeys(path for path in (*named, self.authority, self.revoked) if path is not None))


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was good when it was loaded.

    Attributes:
        ends_ms: when what is in each file ends, in wall time: of a chain, the first certificate to do so.
        revoked: by issuer and serial number.
        lists_end_ms: when what is in each file of revoked certificates is to be replaced.
    """

    server_context: ssl.SSLContext
    client_context: ssl.SSLContext
    ends_ms: Mapping[str, int]
    revoked: frozenset[tuple[PlainName, int]]
    lists_end_ms: Mapping[str, int]


class Certificates:
    """The TLS identity of the network port. Raises `WrongSettings` or `StartupError` when made of what is no good."""

    def __init__(self, settings: TlsSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._stamp = _stamp(settings.paths)
        self._loaded = load(settings, clock.now_ms())
        self._watching: list[Callable[[], None]] = []
        self._reloading = asyncio.Lock()
        self._tell_ends()

    @property
    def server_context(self) -> ssl.SSLContext:
        return self._loaded.server_context

    @property
    def client_context(self) -> ssl.SSLContext:
        return self._loaded.client_context

    @property
    def ends_ms(self) -> Mapping[str, int]:
        """When what is in each file ends, by path."""
        return self._loaded.ends_ms

    @property
    def lists_end_ms(self) -> Mapping[str, int]:
        """When what is in each file of revoked certificates is to be replaced, by path."""
        return self._loaded.lists_end_ms

    def refuse(self, certificate: bytes) -> str | None:
        try:
            issuer, serial, begins_ms, ends_ms = _facts(certificate)
        except ValueError as error:
            return f"its certificate cannot be read: {error}"
        now_ms = self._clock.now_ms()
        if now_ms > ends_ms:
            return f"its certificate, serial number {serial:x}, has ended at {_tell_time(ends_ms)}"
        if now_ms < begins_ms:
            return f"its certificate, serial number {serial:x}, is not good before {_tell_time(begins_ms)}"
        if (issuer, serial) in self._loaded.revoked:
            return f"its certificate, serial number {serial:x}, is revoked"
        return None

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._watching.append(changed)
        return lambda: self._watching.remove(changed) if changed in self._watching else None

    async def reload(self) -> bool:
        """Load all files again; whether they were good. If not, everything stays as it was."""
        async with self._reloading:
            try:
                self._stamp, self._loaded = await asyncio.to_thread(self._load)
            except StartupError as error:
                log_.error("certificates cannot be loaded, the ones from before stay", reason=str(error))
                return False
        log_.info("certificates loaded", files=" ".join(self._settings.paths))
        self._tell()
        return True

    def _load(self) -> tuple["_Stamp", Loaded]:
        self._stamp = stamp = _stamp(self._settings.paths)  # before: what changes meanwhile is loaded once more
        return stamp, load(self._settings, self._clock.now_ms())

    def _tell(self) -> None:
        for changed in list(self._watching):
            changed()

    async def look(self) -> None:
        """Load what has changed, and have those looked at who are connected."""
        is_changed = await asyncio.to_thread(_stamp, self._settings.paths) != self._stamp
        if not is_changed or not await self.reload():
            self._tell()
        self._tell_ends()

    def _tell_ends(self) -> None:
        now_ms = self._clock.now_ms()
        for path, end_ms in self.ends_ms.items():
            if end_ms < now_ms:
                told = f"this certificate has ended at {_tell_time(end_ms)}, and others refuse it: renew it"
                log_.limited(path, per_second=_ENDED_PER_S).error(told, file=path)
        for path, end_ms in self.lists_end_ms.items():
            if end_ms < now_ms:
                told = f"this list of revoked certificates was to be replaced at {_tell_time(end_ms)}: fetch a new one"
                log_.limited(path, per_second=_ENDED_PER_S).warning(told, file=path)

    async def keep_looking(self) -> None:
        """Look every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()


def load(settings: TlsSettings, now_ms: int) -> Loaded:
    """Read and check all files. Raises `WrongSettings`, or `StartupError` for what may pass by itself."""
    if settings.client_auth is not ClientAuth.NONE and settings.authority is None:
        raise WrongSettings(
            f"client_auth is {settings.client_auth.value}, and there is no authority to check clients by"
        )
    pairs = (settings.shown, *settings.by_name.values())
    ends_ms = {pair.certificate: _check_pair(pair, now_ms) for pair in pairs}
    authorities: list[Certificate] = []
    if settings.authority is not None:
        authorities = _parse(settings.authority, "certificate authority")
        ends_ms[settings.authority] = min(map(_ends_ms, authorities))
    revoked, lists_end_ms = Revoked(), {}
    if settings.revoked is not None:
        revoked = load_revoked(settings.revoked, authorities)
        if revoked.next_update is not None:
            lists_end_ms[settings.revoked] = _ms(revoked.next_update)
    server_context = _server_context(settings.shown, settings)
    if settings.by_name:
        others = {name.lower(): _server_context(pair, settings) for name, pair in settings.by_name.items()}
        server_context.sni_callback = _chooser(others)
    return Loaded(server_context, _client_context(settings), ends_ms, revoked.numbers, lists_end_ms)


def _server_context(pair: KeyPair, settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _fill(context, pair, settings)
    if settings.client_auth is not ClientAuth.NONE:
        context.verify_mode = ssl.CERT_REQUIRED if settings.client_auth is ClientAuth.REQUIRE else ssl.CERT_OPTIONAL
        # A session that goes on would bring a client back without its certificate being looked at.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context


def _client_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _fill(context, settings.shown, settings)
    if settings.authority is None:
        context.load_default_certs()
    return context


def _fill(context: ssl.SSLContext, pair: KeyPair, settings: TlsSettings) -> None:
    harden(context)
    password = _read_password(pair.password_file)
    try:
        context.load_cert_chain(pair.certificate, pair.key, password=lambda: password)
    except ssl.SSLError as error:
        raise WrongSettings(_tell_pair(pair, error)) from None
    except OSError as error:  # gone since it was looked at
        raise obstacles.refusal(f"cannot read {obstacles.tell_path(error, 'file')}", error) from None
    if settings.authority is not None:
        try:
            context.load_verify_locations(cafile=settings.authority)
        except OSError as error:
            told = reason_of(error) if isinstance(error, ssl.SSLError) else str(error)
            raise WrongSettings(f"the certificate authority {settings.authority} cannot be used: {told}") from None
    if settings.protocols:
        context.set_alpn_protocols(list(settings.protocols))


def _tell_pair(pair: KeyPair, error: ssl.SSLError) -> str:
    reason = reason_of(error)
    if "mismatch" in reason:
        reason += "; the key is not the one of the certificate"
    elif pair.password_file is not None:
        reason += f"; is the password in {pair.password_file} the one of the key?"
    return f"the certificate {pair.certificate} and the private key {pair.key} cannot be used: {reason}"


def _chooser(others: Mapping[str, ssl.SSLContext]) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], None]:
    """What shows who connects the certificate of the name that it asks for."""

    def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        asked = (name or "").lower().rstrip(".")
        other = others.get(asked) or others.get(f"*.{asked.partition('.')[2]}")
        if other is not None:
            connection.context = other

    return choose


def _check_pair(pair: KeyPair, now_ms: int) -> int:
    """When the first certificate of the chain ends."""
    chain = _parse(pair.certificate, "certificate")
    check_private(pair.key, "private key")
    if pair.password_file is not None:
        check_private(pair.password_file, "password file")
    read_pem(pair.key, "private key", "PRIVATE KEY", has_password=pair.password_file is not None)
    for each in chain:
        if _begins_ms(each) > now_ms:
            began = f"{each.not_valid_before_utc:%Y-%m-%d %H:%M}"
            raise WrongSettings(f"the certificate {pair.certificate} is not good before {began} UTC")
        if _ends_ms(each) < now_ms:
            ended = f"{each.not_valid_after_utc:%Y-%m-%d %H:%M}"
            raise WrongSettings(f"the certificate {pair.certificate} has ended at {ended} UTC: renew it")
    return min(map(_ends_ms, chain))


def check_private(path: str, what: str) -> None:
    """Raises `WrongSettings` for a file that others may read, `StartupError` for one that is not there."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise obstacles.refusal(f"cannot read the {what} {obstacles.tell_path(error, 'file')}", error) from None
    if not is_private(found):
        mode = stat.S_IMODE(found.st_mode)
        told = f"has mode {mode:04o}, so others may read it: '{tell_way_out(path, found)}'"
        raise WrongSettings(f"the {what} {path} {told}")


def _read_password(path: str | None) -> str:
    if path is None:
        return ""  # without one the library would ask for it on the terminal
    try:
        return Path(path).read_text().rstrip("\r\n")
    except (OSError, ValueError) as error:
        raise WrongSettings(f"cannot read the password file {path}: {error}") from None


def _parse(path: str, what: str) -> "list[Certificate]":
    from cryptography import x509

    text = read_pem(path, what, "CERTIFICATE")
    try:
        return x509.load_pem_x509_certificates(text)
    except ValueError as error:
        raise WrongSettings(f"the {what} {path} cannot be used: {error}") from None


@lru_cache(maxsize=_KNOWN)
def _facts(certificate: bytes) -> tuple[PlainName, int, int, int]:
    """Issuer, serial number, when it begins and when it ends. Raises `ValueError`."""
    from cryptography import x509

    try:
        parsed = x509.load_der_x509_certificate(certificate)
    except x509.InvalidVersion as error:  # which is no ValueError
        raise ValueError(str(error)) from None
    return plain_name(parsed.issuer), parsed.serial_number, _begins_ms(parsed), _ends_ms(parsed)


def _begins_ms(certificate: "Certificate") -> int:
    return _ms(certificate.not_valid_before_utc)


def _ends_ms(certificate: "Certificate") -> int:
    return _ms(certificate.not_valid_after_utc)


def _tell_time(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def _ms(time: datetime) -> int:
    return int((time - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)


_Stamp = tuple[tuple[int, int, int] | None, ...]


def _stamp(paths: tuple[str, ...]) -> _Stamp:
    """Changes with what is behind the paths, also when only a link on the way does (as in Kubernetes)."""
    return tuple(_stamp_of(path) for path in paths)


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
