"""What a scanner would look for: every listener that speaks TLS is offered what is weak, and takes none of it."""

import socket
from collections.abc import Iterator

import pytest

from .conftest import PEER
from .hello import (
    FALLBACK_SCSV,
    HEARTBEAT,
    RENEGOTIATION,
    RENEGOTIATION_SCSV,
    SSL_3,
    TICKET,
    TLS_1_0,
    TLS_1_1,
    TLS_1_2,
    TLS_1_3,
    Offer,
    say_hello,
)
from .secure_house import House

pytestmark = pytest.mark.skipif(PEER != "penstock", reason="the listeners are ours")

LISTENERS = ("secret", "mutual", "web", "strict")
OF_1_3 = {0x1301, 0x1302, 0x1303}
OF_1_2 = {
    *(0xC02B, 0xC02C, 0xC02F, 0xC030),  # ECDHE, AES-GCM
    *(0xCCA8, 0xCCA9),  # ECDHE, ChaCha20-Poly1305
}
STRONG = sorted(OF_1_2 | OF_1_3)
_NOT_CIPHERS = {FALLBACK_SCSV, RENEGOTIATION_SCSV}
_AT_ONCE = 8192
_BROKEN_GROUPS = (1, 2, 3, 15, 16, 17, 18, 19, 20, 21, 22)  # below 224 bits or so, sect* and secp*
_BROKEN_SIGNATURES = (0x0101, 0x0201, 0x0203, 0x0202)  # MD5, SHA-1
_WAIT_S = 5.0


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("scanned"))
    yield made
    log = made.log
    assert made.broker.stop() == 0
    assert "Traceback" not in log


@pytest.fixture(params=LISTENERS)
def listener(request: pytest.FixtureRequest, house: House) -> str:
    return house.addresses[request.param]


@pytest.mark.parametrize("version", [SSL_3, TLS_1_0, TLS_1_1])
def test_old_versions_are_refused_whatever_the_cipher(listener: str, version: int) -> None:
    everything = [number for number in range(1, 0x0100) if number not in _NOT_CIPHERS]
    offers = [everything, [*range(0xC001, 0xC0FF)], STRONG]
    told = [say_hello(listener, Offer(ciphers, newest=version)) for ciphers in offers]
    assert all(answer.is_refusal for answer in told), told


def test_the_newest_version_is_spoken_and_so_is_the_one_before(listener: str) -> None:
    both = say_hello(listener, Offer(STRONG, versions=(TLS_1_3, TLS_1_2)))
    assert both.version == TLS_1_3
    assert both.cipher in OF_1_3
    older = say_hello(listener, Offer(STRONG))
    assert older.version == TLS_1_2
    assert older.cipher in OF_1_2


def test_no_other_cipher_is_taken(listener: str) -> None:
    """All numbers that there are, but for the few that are good: what a scanner does not know, is offered too."""
    others = [number for number in range(0x10000) if number not in {*STRONG, *_NOT_CIPHERS}]
    for versions in ((), (TLS_1_3, TLS_1_2)):
        for at in range(0, len(others), _AT_ONCE):
            answer = say_hello(listener, Offer(others[at : at + _AT_ONCE], versions=versions))
            assert answer.is_refusal, f"{answer.cipher:#06x} is taken"


def test_who_falls_back_without_need_is_told(listener: str) -> None:
    """As somebody between the two would make a client do (RFC 7507)."""
    assert say_hello(listener, Offer([*STRONG, FALLBACK_SCSV])).is_refusal


def test_nothing_is_compressed_and_no_heart_beats(listener: str) -> None:
    more = {HEARTBEAT: b"\x01"}
    answer = say_hello(listener, Offer([*STRONG, RENEGOTIATION_SCSV], compressions=(1, 0), more=more))
    assert (answer.version, answer.compression) == (TLS_1_2, 0)
    assert HEARTBEAT not in answer.extensions
    assert RENEGOTIATION in answer.extensions  # who would bind an old session to a new one is found out (RFC 5746)


def test_weak_groups_and_signatures_are_refused(listener: str) -> None:
    for weak in (
        Offer(STRONG, groups=_BROKEN_GROUPS),
        Offer(STRONG, signatures=_BROKEN_SIGNATURES),
        Offer(STRONG, versions=(TLS_1_3,), groups=_BROKEN_GROUPS),
        Offer(STRONG, versions=(TLS_1_3,), signatures=_BROKEN_SIGNATURES),
    ):
        answer = say_hello(listener, weak)
        assert answer.is_refusal, answer


@pytest.mark.parametrize("name", ["mutual", "strict"])
def test_no_ticket_where_certificates_let_in(house: House, name: str) -> None:
    """With one, who has been revoked meanwhile would not show its certificate again."""
    answer = say_hello(house.addresses[name], Offer(STRONG, more={TICKET: b""}))
    assert answer.version == TLS_1_2
    assert TICKET not in answer.extensions


def test_what_is_not_tls_is_let_go(listener: str) -> None:
    ssl_2 = b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + bytes(37)
    for said in (b"\0\0\0\x0a" + bytes(10), b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", ssl_2, b"\x16\x03\x01\xff\xff"):
        host, _, port = listener.rpartition(":")
        with socket.create_connection((host, int(port)), _WAIT_S) as connection:
            connection.sendall(said)
            heard = b""
            try:
                while got := connection.recv(4096):
                    heard += got
            except ConnectionResetError:
                pass
        assert len(heard) <= 7, heard  # one alert at the most
