"""The client's side of SCRAM: the vector of its RFC, odd names, and servers that are not what they say."""

from random import Random

import pytest

from penstock.client import scram
from penstock.client.scram import ScramClient, ScramError
from penstock.security.scram import Mechanism, ScramExchange, derive

SALT = b"salt of 16 bytes"
NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> ScramClient:
    monkeypatch.setattr(scram, "draw_nonce", lambda: NONCE)
    return ScramClient("SCRAM-SHA-256", "user", "pencil")


def test_the_vector_of_rfc_7677(client: ScramClient) -> None:
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.final(FIRST.encode()) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("mechanism", list(Mechanism))
@pytest.mark.parametrize(
    ("user", "password"), [("comma,equals=", "a,b=c"), ("Żółć", "ключ"), ("u", "soft\xadhyphen, Ⅸ and \x07")]
)
def test_names_and_passwords_go_as_they_are(mechanism: Mechanism, user: str, password: str) -> None:
    keys = derive(mechanism, password.encode(), SALT)
    exchange = ScramExchange(mechanism, lambda said: keys if said.user == user else None, lambda _: keys, Random(1))
    client = ScramClient(mechanism.value, user, password)
    client.check(exchange.step(client.final(exchange.step(client.first()))))
    assert exchange.proof is not None and exchange.proof.user == user


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (FIRST.replace("r=rO", "r=xO"), "another exchange"),
        (f"r={NONCE},s=W22Z,i=4096", "another exchange"),
        (FIRST.replace("i=4096", "i=4095"), "hashes 4095 times"),
        (FIRST.replace("i=4096", "i=1000001"), "hashes 1000001 times"),
        (FIRST.replace("i=4096", "i=-1"), "does not say how often"),
        (FIRST.replace("s=W22ZaJ0SNY7soEsUEjb6gQ==", "s=&"), "lacks what proves it"),
        ("m=more," + FIRST, "an extension of SCRAM"),
        ("e=unknown-user", "it says 'unknown-user'"),
    ],
)
def test_a_server_that_is_none(client: ScramClient, told: str, why: str) -> None:
    with pytest.raises(ScramError, match=why):
        client.final(told.encode())


@pytest.mark.parametrize("told", [b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", b"v=", b"", b"\xff", b"e=x"])
def test_a_server_that_does_not_know_the_user(client: ScramClient, told: bytes) -> None:
    client.final(FIRST.encode())
    with pytest.raises(ScramError):
        client.check(told)


def test_no_nonce_twice() -> None:
    assert len({ScramClient("SCRAM-SHA-512", "u", "p").first() for _ in range(100)}) == 100
