"""Certificates that are loaded, renewed while connections are open, and revoked."""

import asyncio
import logging
import os
import ssl
import subprocess
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.name import _ASN1Type

from penstock.errors import StartupError, WrongSettings
from penstock.net.certificates import Certificates, ClientAuth, KeyPair, TlsSettings
from penstock.net.revocation import plain_name
from penstock.net.tcp import TcpNetwork
from penstock.net.tls import TlsFiles
from penstock.ports.network import Listener

from .certificates import Authority
from .test_tls import DEADLINE_S, End, join, until

DAY_S = 86_400


class Now:
    """The time, as openssl has it, or later."""

    def __init__(self, later_s: float = 0) -> None:
        self.later_s = later_s

    def now_ms(self) -> int:
        return int((time.time() + self.later_s) * 1000)

    monotonic = staticmethod(time.monotonic)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path / "ours")


@pytest.fixture
def files(authority: Authority) -> TlsFiles:
    return authority.sign("broker")


def pair_of(files: TlsFiles) -> KeyPair:
    return KeyPair(files.certificate, files.key)


def required(files: TlsFiles, **changes: Any) -> TlsSettings:
    return TlsSettings(
        **{
            "shown": pair_of(files),
            "authority": files.authority,
            "client_auth": ClientAuth.REQUIRE,
            **changes,
        }
    )


def parsed(path: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(Path(path).read_bytes())


def serial_of(path: str) -> int:
    return parsed(path).serial_number


def der_of(files: TlsFiles) -> bytes:
    return parsed(files.certificate).public_bytes(Encoding.DER)


def contents_of(path: str) -> bytes:
    return Path(path).read_bytes()


def copy(source: str, target: str) -> None:
    Path(target).write_bytes(contents_of(source))


def revoke(
    authority: Authority,
    path: Path,
    *revoked: TlsFiles,
    signer: Authority | None = None,
    issuer: x509.Name | None = None,
    days_ago: float = 0,
) -> str:
    """Write a list of revoked certificates, which is good for a day."""
    now = datetime.now(UTC) - timedelta(days_ago)
    issuer = issuer or parsed(authority.certificate).subject
    made = x509.CertificateRevocationListBuilder().issuer_name(issuer).last_update(now).next_update(now + timedelta(1))
    for each in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(serial_of(each.certificate)).revocation_date(now)
        made = made.add_revoked_certificate(entry.build())
    key = load_pem_private_key(((signer or authority).directory / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    path.write_bytes(made.sign(key, SHA256()).public_bytes(Encoding.PEM))
    return str(path)


async def serve(certificates: Certificates) -> tuple[list[End], Listener]:
    came: list[End] = []

    def accept() -> End:
        came.append(End())
        return came[-1]

    return came, await TcpNetwork().listen("127.0.0.1", 0, accept, tls=certificates)


async def shown(listener: Listener, trusted: str, name: str = "localhost") -> int:
    """The serial number of what a listener shows to who asks for a name."""
    context = ssl.create_default_context(cafile=trusted)
    context.check_hostname = False
    _, writer = await asyncio.open_connection(*listener.address, ssl=context, server_hostname=name)
    found = writer.get_extra_info("ssl_object").getpeercert(True)
    writer.transport.abort()
    return x509.load_der_x509_certificate(found).serial_number


async def come_in(listener: Listener, files: TlsFiles, came: list[End]) -> End | None:
    """Whether somebody with this certificate is let in."""
    before = len(came)
    try:
        client = await join(listener, files.make_client_context())
    except OSError:
        return None
    await until(lambda: len(came) > before or client.events[-1] == "disconnected")
    return client if len(came) > before else None


async def test_a_new_certificate_is_shown_and_who_is_connected_stays(authority: Authority, files: TlsFiles) -> None:
    certificates = Certificates(TlsSettings(pair_of(files)), Now())
    came, listener = await serve(certificates)
    client = await join(listener, files.make_client_context())
    assert await shown(listener, authority.certificate) == serial_of(files.certificate)
    old = serial_of(files.certificate)
    authority.sign("broker")
    await certificates.look()
    assert await shown(listener, authority.certificate) == serial_of(files.certificate) != old
    client.out.write(b"still here")
    await until(lambda: came[0].data == b"still here")
    client.out.abort()
    await listener.close()


async def test_what_is_wrong_is_told_and_nothing_changes(
    authority: Authority, files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = Certificates(TlsSettings(pair_of(files)), Now())
    _, listener = await serve(certificates)
    serial, kept = serial_of(files.certificate), f"{files.key}.kept"
    copy(files.key, kept)
    copy(authority.sign("other").key, files.key)
    with caplog.at_level(logging.ERROR):
        assert not await certificates.reload()
    assert "not the one of the certificate" in (told := str(vars(caplog.records[-1])))
    assert files.certificate in told
    assert await shown(listener, authority.certificate) == serial
    caplog.clear()
    await certificates.look()  # said once: the files are as they were
    assert caplog.records == []
    copy(kept, files.key)
    await certificates.look()
    assert await shown(listener, authority.certificate) == serial
    await listener.close()


async def test_links_that_are_swapped(authority: Authority, files: TlsFiles, tmp_path: Path) -> None:
    """As Kubernetes does: files are links into a directory, which is a link to one of a version."""
    for version, made in (("v1", files), ("v2", authority.sign("next"))):
        (tmp_path / version).mkdir()
        os.link(made.certificate, tmp_path / version / "tls.crt")
        os.link(made.key, tmp_path / version / "tls.key")
    (tmp_path / "data").symlink_to("v1")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"data/{name}")
    certificates = Certificates(TlsSettings(KeyPair(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))), Now())
    _, listener = await serve(certificates)
    assert await shown(listener, authority.certificate) == serial_of(files.certificate)
    (tmp_path / "new").symlink_to("v2")
    (tmp_path / "new").rename(tmp_path / "data")
    await certificates.look()
    assert await shown(listener, authority.certificate) == serial_of(str(tmp_path / "v2" / "tls.crt"))
    await listener.close()


async def test_who_is_revoked_goes_and_does_not_come_back(
    authority: Authority, files: TlsFiles, tmp_path: Path
) -> None:
    alice, bob = authority.sign("alice"), authority.sign("bob")
    revoked = revoke(authority, tmp_path / "crl.pem")
    certificates = Certificates(required(files, revoked=revoked), Now())
    came, listener = await serve(certificates)
    ends = [await come_in(listener, each, came) for each in (alice, bob)]
    assert None not in ends
    assert came[0].out.certificate is not None and came[0].out.certificate != came[1].out.certificate
    revoke(authority, tmp_path / "crl.pem", alice)
    assert await certificates.reload()
    await until(lambda: ends[0].events[-1] == "disconnected")
    assert came[0].events[-1] == "disconnected"
    assert ends[1].events[-1] == came[1].events[-1] == "connected"
    assert await come_in(listener, alice, came) is None
    assert await come_in(listener, bob, came) is not None
    await listener.close()


@pytest.mark.parametrize("version", ["tls1_2", "tls1_3"])
async def test_a_session_from_before_does_not_bring_a_revoked_client_back(
    authority: Authority, files: TlsFiles, tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = authority.sign("alice")
    revoked = revoke(authority, tmp_path / "crl.pem")
    certificates = Certificates(required(files, revoked=revoked), Now())
    came, listener = await serve(certificates)
    session = str(tmp_path / "session")

    async def call(*words: str) -> str:
        before = len(came)
        client = await asyncio.create_subprocess_exec(
            *("openssl", "s_client", "-connect", f"127.0.0.1:{listener.address[1]}", f"-{version}"),
            *("-cert", alice.certificate, "-key", alice.key, *words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert client.stdin is not None and client.stdout is not None
        said = asyncio.create_task(client.stdout.read())
        await until(lambda: said.done() or len(came) > before)
        if len(came) > before:
            client.stdin.write(b"hello\n")
            await until(lambda: b"hello" in came[before].data)
            came[before].out.close()
        text = (await said).decode(errors="replace")
        await client.wait()
        return text if len(came) > before else "refused"

    assert "hello" not in await call("-sess_out", session)
    if version == "tls1_3":
        assert not os.path.exists(session)  # noqa: ASYNC240 - there was no ticket
    else:
        # Only the list changes, not the context: its sessions are there still.
        revoked_now = frozenset({(plain_name(parsed(alice.certificate).issuer), serial_of(alice.certificate))})
        monkeypatch.setattr(certificates, "_loaded", replace(certificates._loaded, revoked=revoked_now))
        assert await call("-sess_in", session) == "refused"
    revoke(authority, tmp_path / "crl.pem", alice)
    await certificates.look()
    assert await call(*(("-sess_in", session) if version == "tls1_2" else ())) == "refused"
    await listener.close()


async def test_a_listener_that_is_closed_is_told_no_more_when_nobody_is_left(
    authority: Authority, files: TlsFiles
) -> None:
    certificates = Certificates(required(files), Now())
    came, listener = await serve(certificates)
    client = await come_in(listener, authority.sign("alice"), came)
    assert client is not None
    await listener.close()
    assert len(certificates._watching) == 1
    client.out.close()
    await until(lambda: came[0].events[-1] == "disconnected")
    assert certificates._watching == []


async def test_a_certificate_that_ends_while_its_owner_is_connected(authority: Authority, files: TlsFiles) -> None:
    clock = Now()
    certificates = Certificates(required(files), clock)
    came, listener = await serve(certificates)
    client = await come_in(listener, authority.sign("alice"), came)
    assert client is not None
    await certificates.look()
    assert client.events[-1] == "connected"
    clock.later_s = 3 * DAY_S
    await certificates.look()
    await until(lambda: client.events[-1] == "disconnected")
    await listener.close()


@pytest.mark.parametrize("auth", ClientAuth)
async def test_whether_clients_are_asked(
    authority: Authority, files: TlsFiles, tmp_path: Path, auth: ClientAuth
) -> None:
    came, listener = await serve(Certificates(required(files, client_auth=auth), Now()))
    nobody = End()
    context = ssl.create_default_context(cafile=authority.certificate)
    with_nothing = asyncio.create_task(
        TcpNetwork().connect(*listener.address, nobody, timeout_s=DEADLINE_S, tls=context)
    )
    await asyncio.wait([with_nothing])
    await until(lambda: len(came) == 1 or nobody.events[-1:] == ["disconnected"])
    assert len(came) == (0 if auth is ClientAuth.REQUIRE else 1)
    assert [end.out.certificate for end in came] in ([], [None])
    came.clear()
    assert await come_in(listener, authority.sign("alice"), came) is not None
    assert came[0].out.certified == (auth is not ClientAuth.NONE)
    strangers = Authority.make(tmp_path / "theirs").sign("stranger")
    stranger = TlsFiles(strangers.certificate, strangers.key, authority.certificate)
    assert (await come_in(listener, stranger, came) is not None) == (auth is ClientAuth.NONE)
    await listener.close()


async def test_the_certificate_of_the_name_that_is_asked_for(authority: Authority, files: TlsFiles) -> None:
    exact, wild = authority.sign("exact"), authority.sign("wild")
    by_name = {"A.example": pair_of(exact), "*.example": pair_of(wild)}
    certificates = Certificates(TlsSettings(pair_of(files), by_name=by_name), Now())
    _, listener = await serve(certificates)
    for name, expected in (
        ("a.example", exact),
        ("A.EXAMPLE", exact),
        ("b.example", wild),
        ("c.b.example", files),
        ("example", files),
        ("else.where", files),
        ("127.0.0.1", files),
    ):
        assert await shown(listener, authority.certificate, name) == serial_of(expected.certificate), name
    await listener.close()


async def test_what_is_spoken_within_is_agreed_on(authority: Authority, files: TlsFiles) -> None:
    _, listener = await serve(Certificates(TlsSettings(pair_of(files), protocols=("http/1.1",)), Now()))
    for offered, agreed in ((["h2", "http/1.1"], "http/1.1"), (["h2"], None)):
        context = ssl.create_default_context(cafile=authority.certificate)
        context.set_alpn_protocols(offered)
        _, writer = await asyncio.open_connection(*listener.address, ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == agreed
        writer.transport.abort()
    await listener.close()


async def test_no_tickets_where_clients_show_certificates(files: TlsFiles) -> None:
    asked = Certificates(required(files, client_auth=ClientAuth.REQUEST), Now()).server_context
    assert asked.num_tickets == 0
    assert asked.options & ssl.OP_NO_TICKET
    assert Certificates(TlsSettings(pair_of(files)), Now()).server_context.num_tickets > 0


async def test_when_certificates_end(files: TlsFiles) -> None:
    ends_ms = Certificates(required(files), Now()).ends_ms
    assert set(ends_ms) == {files.certificate, files.authority}
    assert abs(ends_ms[files.certificate] / 1000 - time.time() - 2 * DAY_S) < DAY_S / 24


async def test_an_authority_ends_when_the_first_certificate_in_its_file_does(
    authority: Authority, files: TlsFiles, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle.pem"
    short = authority.sign("short", days=1)
    for names in ((authority.certificate, short.certificate), (short.certificate, authority.certificate)):
        bundle.write_bytes(b"".join(contents_of(name) for name in names))
        ends_ms = Certificates(required(files, authority=str(bundle)), Now()).ends_ms
        assert abs(ends_ms[str(bundle)] / 1000 - time.time() - DAY_S) < DAY_S / 24


def locked(files: TlsFiles, directory: Path, word: str = "word") -> TlsFiles:
    key = directory / "locked.pem"
    words = ["openssl", "pkey", "-in", files.key, "-out", str(key), "-aes256", "-passout", f"pass:{word}"]
    subprocess.run(words, check=True, capture_output=True)
    key.chmod(0o600)
    return TlsFiles(files.certificate, str(key), files.authority)


def password_in(directory: Path, word: str) -> str:
    path = directory / "password"
    path.write_text(f"{word}\n")
    path.chmod(0o600)
    return str(path)


async def test_a_key_with_a_password(files: TlsFiles, tmp_path: Path) -> None:
    pair = KeyPair(files.certificate, locked(files, tmp_path).key, password_in(tmp_path, "word"))
    _, listener = await serve(Certificates(TlsSettings(pair), Now()))
    assert await shown(listener, str(files.authority)) == serial_of(files.certificate)
    await listener.close()


def refusals(authority: Authority, files: TlsFiles, directory: Path) -> dict[str, tuple[TlsSettings, str]]:
    other, old = authority.sign("other"), authority.sign("old", days=-1)
    strangers = Authority.make(directory / "theirs")
    empty, broken, open_key = directory / "empty.pem", directory / "broken.pem", directory / "open.key"
    empty.write_text("")
    broken.write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    open_key.write_bytes(Path(files.key).read_bytes())
    open_key.chmod(0o640)
    locked_key = locked(files, directory).key
    wrong = password_in(directory, "wrong")
    theirs = revoke(authority, directory / "theirs.crl", signer=strangers)
    foreign = revoke(strangers, directory / "foreign.crl")
    shown = files.certificate
    return {
        "key of another": (TlsSettings(KeyPair(shown, other.key)), r"other\.key.*not the one of the certificate"),
        "ended": (TlsSettings(pair_of(old)), r"old\.pem has ended at 20.* UTC: renew it"),
        "no certificate": (
            TlsSettings(KeyPair("/nowhere/c.pem", files.key)),
            r"the certificate /nowhere/c\.pem",
        ),
        "no key": (TlsSettings(KeyPair(shown, "/nowhere/k.pem")), r"cannot read the private key /nowhere/k\.pem"),
        "empty": (TlsSettings(KeyPair(str(empty), files.key)), r"empty\.pem has no '-----BEGIN CERTIFICATE"),
        "broken": (TlsSettings(KeyPair(str(broken), files.key)), r"broken\.pem cannot be used"),
        "open key": (TlsSettings(KeyPair(shown, str(open_key))), r"open\.key has mode 0640.*chmod 600"),
        "locked": (TlsSettings(KeyPair(shown, locked_key)), r"locked\.pem has a password and cannot be read"),
        "wrong password": (TlsSettings(KeyPair(shown, locked_key, wrong)), r"is the password in .*password the one"),
        "no password": (
            TlsSettings(KeyPair(shown, locked_key, "/nowhere/p")),
            r"password file /nowhere/p",
        ),
        "no authority": (
            TlsSettings(pair_of(files), client_auth=ClientAuth.REQUEST),
            "client_auth is request, and there is no authority",
        ),
        "broken authority": (
            required(files, authority=str(broken)),
            r"authority .*broken\.pem cannot be used",
        ),
        "list of nothing": (
            required(files, revoked=str(empty)),
            r"revoked certificates .*has no '-----BEGIN X509",
        ),
        "list not signed": (required(files, revoked=theirs), r"theirs\.crl is not signed by the"),
        "list of others": (
            required(files, revoked=foreign),
            r"foreign\.crl is not signed by the",
        ),
        "by name": (
            TlsSettings(pair_of(files), by_name={"a": KeyPair(shown, other.key)}),
            r"other\.key.*not the one of the certificate",
        ),
    }


async def test_files_that_cannot_be_used(authority: Authority, files: TlsFiles, tmp_path: Path) -> None:
    for what, (settings, told) in refusals(authority, files, tmp_path).items():
        with pytest.raises(StartupError, match=told):
            Certificates(settings, Now())
        assert what


async def test_a_certificate_that_is_not_good_yet(files: TlsFiles) -> None:
    with pytest.raises(WrongSettings, match="is not good before"):
        Certificates(TlsSettings(pair_of(files)), Now(-3 * DAY_S))


async def test_a_list_that_is_old_is_told_of_and_used(
    authority: Authority, files: TlsFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alice = authority.sign("alice")
    settings = required(files, revoked=revoke(authority, tmp_path / "crl.pem", alice))
    with caplog.at_level(logging.WARNING):
        certificates = Certificates(settings, Now(1.5 * DAY_S))
    assert "crl.pem" in str(vars(caplog.records[-1]))
    assert certificates.lists_end_ms == {settings.revoked: pytest.approx(Now(DAY_S).now_ms(), abs=60_000)}
    assert "is revoked" in str(certificates.refuse(der_of(alice)))
    assert certificates.refuse(b"x" * 20) is not None


@pytest.mark.parametrize(
    ("written", "kind"),
    [("ca", _ASN1Type.PrintableString), ("ca", _ASN1Type.BMPString), (" CA ", _ASN1Type.UTF8String)],
)
async def test_an_authority_may_write_its_name_otherwise_in_its_lists(
    authority: Authority, files: TlsFiles, tmp_path: Path, written: str, kind: _ASN1Type
) -> None:
    """OpenSSL finds the authority of a certificate by the same rules."""
    alice, bob = authority.sign("alice"), authority.sign("bob")
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, written, _type=kind)])
    assert issuer.public_bytes() != parsed(alice.certificate).issuer.public_bytes()
    path = revoke(authority, tmp_path / "crl.pem", alice, issuer=issuer)
    certificates = Certificates(required(files, revoked=path), Now())
    assert "is revoked" in str(certificates.refuse(der_of(alice)))
    assert certificates.refuse(der_of(bob)) is None


async def test_looking_goes_on(authority: Authority, files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.net.certificates.LOOK_S", 0.01)
    certificates = Certificates(TlsSettings(pair_of(files)), Now())
    looking = asyncio.create_task(certificates.keep_looking())
    before = certificates.server_context
    authority.sign("broker")
    await until(lambda: certificates.server_context is not before)
    looking.cancel()


def test_a_chain_ends_with_its_first_certificate_that_does(authority: Authority, files: TlsFiles) -> None:
    sooner = authority.sign("between", days=1)
    with Path(files.certificate).open("a") as chain:
        chain.write(Path(sooner.certificate).read_text())
    ends = parsed(sooner.certificate).not_valid_after_utc
    assert Certificates(TlsSettings(pair_of(files)), Now()).ends_ms == {files.certificate: ends.timestamp() * 1000}
