"""`penstock tls`: what it makes is taken by brokers, by OpenSSL and by Java as it is, and what it shows is so."""

import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from penstock.cli import authority
from penstock.cli.failure import CommandError
from penstock.cli.main import main
from penstock.cli.new_files import _write_beside, write_new
from penstock.net.certificates import ClientAuth, KeyPair, TlsSettings, load
from penstock.protocols.internal.broker_certificate import names_broker

Capture = pytest.CaptureFixture[str]
Call = Callable[..., Any]


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def answer(capsys: Capture) -> Call:
    """Calls `penstock tls WORDS... -o json`."""

    def call(*words: str) -> Any:
        assert main(["tls", *words, "-o", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def refused(capsys: Capture) -> Callable[..., str]:
    """Calls `penstock tls WORDS...`, which ends with exit code 2 and one line."""

    def call(*words: str) -> str:
        assert main(["tls", *words]) == 2
        told = capsys.readouterr()
        assert told.out == "" and told.err.count("\n") == 1 and told.err.startswith("penstock: ")
        return told.err

    return call


class Now:
    def __init__(self) -> None:
        self.time = datetime.now(UTC).replace(microsecond=0)

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    made = Now()
    monkeypatch.setattr(authority, "now_utc", made)
    return made


def now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """The server's side when both are content. Raises `ssl.SSLError`."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends[1]


@pytest.mark.parametrize("host", ["broker-1.example.com", "a.wild.example.com", "127.0.0.1", "::1"])
def test_brokers_take_what_it_makes_and_clients_find_the_host_in_it(answer: Call, host: str) -> None:
    hosts = ("broker-1.example.com", "*.wild.example.com", "127.0.0.1", "::1")
    answer("init", "tls")
    answer("issue", "tls", "broker-1", *[word for each in hosts for word in ("--host", each)])
    answer("issue", "tls", "alice", "--client")
    settings = TlsSettings(
        KeyPair("tls/broker-1.pem", "tls/broker-1.key"), authority="tls/ca.pem", client_auth=ClientAuth.REQUIRE
    )
    loaded = load(settings, now_ms())
    assert set(loaded.ends_ms) == {"tls/broker-1.pem", "tls/ca.pem"}
    client = ssl.create_default_context(cafile="tls/ca.pem")
    client.load_cert_chain("tls/alice.pem", "tls/alice.key")
    shown = shake_hands(loaded.server_context, client, host).getpeercert()
    assert shown and shown["subject"] == ((("commonName", "alice"),),)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(loaded.server_context, client, "other.example.com")
    # What one broker shows another as its client.
    assert shake_hands(loaded.server_context, loaded.client_context, host).getpeercert()


def test_only_a_broker_s_certificate_is_taken_for_one(answer: Call, refused: Callable[..., str]) -> None:
    answer("init", "tls")
    answer("issue", "tls", "broker-1", "--broker", "--host", "localhost", "--host", "127.0.0.1")
    answer("issue", "tls", "server", "--host", "localhost")
    answer("issue", "tls", "alice", "--client")
    for name, is_broker in (("broker-1", True), ("server", False), ("alice", False)):
        der = ssl.PEM_cert_to_DER_cert(Path(f"tls/{name}.pem").read_text())
        assert names_broker(der) is is_broker, name
    (shown,) = answer("show", "tls/broker-1.pem")["certificates"]
    assert shown["names"] == ["DNS:localhost", "IP:127.0.0.1", "URI:penstock:broker"]
    assert not names_broker(b"no certificate")
    for words in ((), ("--client",)):
        assert "--broker needs --host" in refused("issue", "tls", "eve", "--broker", *words)
    assert not Path("tls/eve.pem").exists()


def test_a_client_s_certificate_is_no_server_s(answer: Call) -> None:
    answer("init", "tls")
    answer("issue", "tls", "alice", "--client")
    server = load(TlsSettings(KeyPair("tls/alice.pem", "tls/alice.key")), now_ms()).server_context
    client = ssl.create_default_context(cafile="tls/ca.pem")
    client.check_hostname = False
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        shake_hands(server, client, "alice")


def test_openssl_finds_nothing_to_blame(answer: Call) -> None:
    answer("init", "tls")
    answer("issue", "tls", "broker", "--host", "localhost")
    answer("issue", "tls", "alice", "--client")
    subprocess.run(
        ["openssl", "verify", "-x509_strict", "-CAfile", "tls/ca.pem", "tls/broker.pem", "tls/alice.pem"],
        check=True,
        capture_output=True,
    )


@pytest.mark.skipif(shutil.which("keytool") is None, reason="there is no keytool")
def test_java_reads_it_and_spells_the_subject_as_we_do(answer: Call) -> None:
    answer("init", "tls")
    (made,) = answer("issue", "tls", "alice@example.com", "--client")["certificates"]
    done = subprocess.run(
        ["keytool", "-printcert", "-file", "tls/alice@example.com.pem"], check=True, capture_output=True, text=True
    )
    assert f"Owner: {made['subject']}\n" in done.stdout
    assert f"Issuer: {made['issuer']}\n" in done.stdout
    assert f"Serial number: {made['serial']}\n" in done.stdout


def test_files_are_their_owner_s_alone(answer: Call) -> None:
    before = os.umask(0)
    try:
        answer("init", "made/tls")
        answer("issue", "made/tls", "alice", "--client")
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in Path("made/tls").iterdir()} == dict.fromkeys(
        ("ca.pem", "ca.key", "alice.pem", "alice.key"), 0o600
    )
    assert Path("made/tls").stat().st_mode & 0o777 == 0o700


def test_keys_are_of_the_curve_that_everybody_has(answer: Call) -> None:
    answer("init", "tls")
    key = serialization.load_pem_private_key(Path("tls/ca.key").read_bytes(), None)
    assert "BEGIN PRIVATE KEY" in Path("tls/ca.key").read_text()
    assert getattr(key, "curve").name == "secp256r1"  # noqa: B009 - of this kind of key alone


def test_nothing_is_replaced_unless_it_is_asked_for(answer: Call, refused: Callable[..., str]) -> None:
    answer("init", "tls")
    answer("issue", "tls", "alice", "--client")
    before = {path: path.read_bytes() for path in Path("tls").iterdir()}
    assert "tls/ca.key is there already" in (told := refused("init", "tls")) and "--force" in told
    Path("tls/alice.key").unlink()  # one of the two is enough
    assert "tls/alice.pem is there already" in refused("issue", "tls", "alice", "--client")
    assert {path: path.read_bytes() for path in Path("tls").iterdir()} == {
        path: body for path, body in before.items() if path.name != "alice.key"
    }
    assert answer("issue", "tls", "alice", "--client", "--force")["key"]["fits"]
    assert Path("tls/alice.pem").read_bytes() != before[Path("tls/alice.pem")]


def test_a_file_that_comes_in_between_stays_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Path("a"), Path("b")
    write_beside = _write_beside

    def slow(path: Path, body: bytes) -> str:
        if path == second:
            second.write_text("somebody else's")
        return write_beside(path, body)

    monkeypatch.setattr("penstock.cli.new_files._write_beside", slow)
    with pytest.raises(CommandError, match="b is there already"):
        write_new({first: b"1", second: b"2"}, replace=False)
    assert os.listdir() == ["b"] and second.read_text() == "somebody else's"


def test_a_disk_that_fails_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a").write_text("old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_new({Path("a"): b"new"}, replace=True)
    assert os.listdir() == ["a"] and Path("a").read_text() == "old"


@pytest.mark.parametrize("host", ["x:9092", "", "a b", "-a.com", "300.1.1.1", "a..b", "*.*.com", "ä.com", "a" * 64])
def test_a_host_that_is_none(refused: Callable[..., str], answer: Call, host: str) -> None:
    answer("init", "tls")
    assert f"{host!r} is neither a host's name nor an address" in refused("issue", "tls", "b", "--host", host)
    assert not Path("tls/b.pem").exists()


@pytest.mark.parametrize("name", ["../b", "ca", "", ".b", "a" * 65, "a\nb", "ä"])
def test_a_name_that_is_none(refused: Callable[..., str], answer: Call, name: str) -> None:
    answer("init", "tls")
    assert "cannot be the name" in refused("issue", "tls", name, "--client")
    assert len(list(Path("tls").iterdir())) == 2


def test_what_it_is_for_is_said_once(refused: Callable[..., str], answer: Call) -> None:
    answer("init", "tls")
    for words in ([], ["--client", "--host", "x"]):
        assert "either --host" in refused("issue", "tls", "b", *words)


def test_what_cannot_sign_is_told_with_the_way_out(refused: Callable[..., str], answer: Call, now: Now) -> None:
    issue = ("issue", "tls", "b", "--client")
    assert "tls/ca.pem is not there; make one with 'penstock tls init tls'" in refused(*issue)
    answer("init", "tls", "--days", "20")
    now.time += timedelta(seconds=1)
    assert "say at most --days 19" in refused(*issue)  # of 365
    answer("init", "other")
    shutil.copy("other/ca.key", "tls/ca.key")
    assert "tls/ca.key is not the key of tls/ca.pem" in refused(*issue)
    Path("tls/ca.pem").write_text("nonsense")
    assert "the authority in tls cannot be used" in refused(*issue)
    Path("file").write_text("")
    assert "'file' is a file" in refused("init", "file")


def test_an_authority_that_has_ended_signs_nothing(refused: Callable[..., str], answer: Call, now: Now) -> None:
    answer("init", "tls", "--days", "1")
    now.time += timedelta(days=2)
    assert "the authority tls/ca.pem has ended at " in refused("issue", "tls", "b", "--client")


def test_what_is_shown_is_so(answer: Call, now: Now) -> None:
    answer("init", "tls")
    answer("issue", "tls", "broker", "--host", "b.example.com", "--host", "::1", "--host", "b.example.com")
    now.time += timedelta(hours=1)
    shown = answer("show", "tls/broker.pem")
    parsed = x509.load_pem_x509_certificate(Path("tls/broker.pem").read_bytes())
    (view,) = shown["certificates"]
    assert view["subject"] == "CN=broker"
    assert view["issuer"].startswith("CN=Penstock trial CA ")
    assert view["names"] == ["DNS:b.example.com", "IP:::1"]
    assert view["uses"] == ["server", "client"] and view["is_authority"] is False
    assert int(view["serial"], 16) == parsed.serial_number
    assert view["begins"] == parsed.not_valid_before_utc.isoformat()
    assert view["ends"] == parsed.not_valid_after_utc.isoformat()
    assert view["days_left"] == 364
    assert shown["key"] == {"file": "tls/broker.key", "mode": "0600", "fits": True, "problem": None}


def test_any_subject_is_spelled_as_java_does(answer: Call) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = "/C=DE/O=Big, Corp/OU=#1/emailAddress=a@b.c/CN=x"
    subprocess.run([*command, "-keyout", "x.key", "-out", "x.pem", "-subj", subject], check=True, capture_output=True)
    (view,) = answer("show", "x.pem")["certificates"]
    assert view["subject"] == r"CN=x,1.2.840.113549.1.9.1=#16056140622e63,OU=\#1,O=Big\, Corp,C=DE"


def test_a_chain_and_a_key_in_one_file(answer: Call, capsys: Capture) -> None:
    answer("init", "tls")
    answer("issue", "tls", "b", "--client")
    Path("all.pem").write_text(Path("tls/b.pem").read_text() + Path("tls/ca.pem").read_text())
    assert answer("show", "all.pem")["key"] is None
    with Path("all.pem").open("a") as file:
        file.write(Path("tls/b.key").read_text())
    Path("all.pem").chmod(0o600)
    shown = answer("show", "all.pem")
    assert [view["is_authority"] for view in shown["certificates"]] == [False, True]
    assert shown["key"]["file"] == "all.pem" and shown["key"]["fits"]
    assert main(["tls", "show", "all.pem"]) == 0
    told = capsys.readouterr().out
    assert "all.pem, certificate 2 of 2" in told and "all.pem fits, mode 0600" in told


def test_a_key_that_a_broker_would_not_take(answer: Call, capsys: Capture) -> None:
    answer("init", "tls")
    answer("issue", "tls", "b", "--client")
    assert "is not the one of" in (other := answer("show", "tls/b.pem", "--key", "tls/ca.key"))["key"]["problem"]
    assert other["key"]["fits"] is False
    Path("tls/b.key").chmod(0o644)
    open_to_all = answer("show", "tls/b.pem")["key"]
    assert open_to_all["fits"] and open_to_all["mode"] == "0644"
    assert "others may read it: 'chmod 600 tls/b.key'" in open_to_all["problem"]
    password = ["-aes256", "-passout", "pass:x", "-out", "locked.key"]
    subprocess.run(["openssl", "pkey", "-in", "tls/b.key", *password], check=True, capture_output=True)
    locked = answer("show", "tls/b.pem", "--key", "locked.key")["key"]
    assert locked["fits"] is None and "has a password" in locked["problem"]
    Path("tls/b.key").write_text("nonsense")
    assert main(["tls", "show", "tls/b.pem"]) == 0  # nobody asked for the key
    assert "tls/b.key has no '-----BEGIN PRIVATE KEY-----'" in capsys.readouterr().out


def test_an_odd_certificate_is_shown_without_the_library_s_warnings(
    answer: Call, recwarn: pytest.WarningsRecorder
) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words = ["-keyout", "x.key", "-out", "x.pem", "-subj", "/CN=x", "-set_serial", "0"]
    subprocess.run([*command, *words], check=True, capture_output=True)
    shown = answer("show", "x.pem")
    assert shown["certificates"][0]["serial"] == "0" and shown["key"]["fits"]
    assert [str(each.message) for each in recwarn] == []


def test_files_that_cannot_be_shown(refused: Callable[..., str], answer: Call) -> None:
    answer("init", "tls")
    assert "No such file" in refused("show", "nothing.pem")
    assert "only PEM can be read" in refused("show", "tls/ca.key")
    Path("broken.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert "broken.pem cannot be read" in refused("show", "broken.pem")
    assert "No such file" in refused("show", "tls/ca.pem", "--key", "nothing.key")


@pytest.mark.parametrize(
    ("later", "days_left", "told"),
    [
        (timedelta(0), 3, "3 days left"),
        (timedelta(seconds=1), 2, "2 days left"),
        (timedelta(days=3), 0, "less than a day left"),
        (timedelta(days=3, seconds=1), -1, "ended less than a day ago"),
        (timedelta(days=4, seconds=1), -2, "ended 1 day ago"),
    ],
)
def test_how_long_it_is_good_still(
    answer: Call, capsys: Capture, now: Now, later: timedelta, days_left: int, told: str
) -> None:
    answer("init", "tls", "--days", "3")
    now.time += later
    assert answer("show", "tls/ca.pem")["certificates"][0]["days_left"] == days_left
    assert main(["tls", "show", "tls/ca.pem"]) == 0
    assert f"UTC ({told})" in capsys.readouterr().out


def test_people_are_told_what_was_made_and_what_comes_next(capsys: Capture, now: Now) -> None:
    assert main(["tls", "init", "tls"]) == 0
    told = capsys.readouterr()
    assert "made tls/ca.pem and tls/ca.key" in told.out and "3,650 days left" in told.out
    assert "penstock tls issue tls NAME --host HOST" in told.err
