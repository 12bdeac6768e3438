"""SCRAM: the vectors of RFC 7677, another project's client, and every way in which an exchange may go wrong."""

import base64
import hashlib
import hmac
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
import scramp
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.security.scram_client import ScramClient

from penstock.security.decoys import Models, decoy_keys
from penstock.security.refusal import TEXT, NotAuthenticated
from penstock.security.scram import (
    MAX_MESSAGE_BYTES,
    ClientFirst,
    Mechanism,
    ScramExchange,
    ScramKeys,
    derive,
    of_salted,
    parse_client_final,
    parse_client_first,
    salt_password,
)

SALT = b"salt of 16 bytes"
USERS = {"alice": "pencil", "bob": "ключ", "comma,equals=": "x", "Żółć": "y"}
KEYS = {
    (mechanism, user): derive(mechanism, password.encode(), SALT, 4096)
    for mechanism in Mechanism
    for user, password in USERS.items()
}
MODELS = Models([{mechanism: KEYS[mechanism, user] for mechanism in Mechanism} for user in USERS])
mechanisms = pytest.mark.parametrize("mechanism", list(Mechanism))


def decoy(user: str, mechanism: Mechanism = Mechanism.SHA_256) -> ScramKeys:
    return decoy_keys(b"d" * 32, MODELS, mechanism, user)


def make_exchange(mechanism: Mechanism = Mechanism.SHA_256, seed: int = 1) -> ScramExchange:
    def find(said: ClientFirst) -> ScramKeys | None:
        return None if said.is_token else KEYS.get((mechanism, said.user))

    return ScramExchange(mechanism, find, lambda user: decoy(user, mechanism), Random(seed))


def log_in(client: ScramClient, exchange: ScramExchange, change: Callable[[bytes], bytes] = lambda said: said) -> bytes:
    return exchange.step(change(client.final(exchange.step(client.first()))))


@mechanisms
@pytest.mark.parametrize("user", list(USERS))
def test_who_knows_the_password_is_known_and_so_are_we(mechanism: Mechanism, user: str) -> None:
    exchange, client = make_exchange(mechanism), ScramClient(mechanism, user, USERS[user])
    assert exchange.proof is None
    told = log_in(client, exchange)
    assert client.believes(told)
    assert exchange.proof is not None and exchange.proof.user == exchange.user == user


@mechanisms
@pytest.mark.parametrize("user", ["alice", "comma,equals="])
def test_another_projects_client(mechanism: Mechanism, user: str) -> None:
    exchange, client = make_exchange(mechanism), scramp.ScramClient([mechanism.value], user, USERS[user])
    client.set_server_first(exchange.step(client.get_client_first().encode()).decode())
    client.set_server_final(exchange.step(client.get_client_final().encode()).decode())
    assert exchange.proof is not None


def test_the_vector_of_rfc_7677() -> None:
    keys = derive(Mechanism.SHA_256, b"pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
    exchange = ScramExchange(Mechanism.SHA_256, lambda _: keys, decoy, Random(1))
    exchange.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    exchange._nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    exchange._said = f"r={exchange._nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = f"c=biws,r={exchange._nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert exchange.step(final.encode()) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@mechanisms
def test_keys_are_those_of_another_project_and_of_a_password_salted_elsewhere(mechanism: Mechanism) -> None:
    salt, stored_key, server_key, iterations = scramp.ScramMechanism(mechanism.value).make_auth_info("pw", 4096, SALT)
    made = derive(mechanism, b"pw", SALT, 4096)
    assert made == ScramKeys(salt, stored_key, server_key, iterations)
    assert made == of_salted(mechanism, salt_password(mechanism, b"pw", SALT, 4096), SALT, 4096)
    shown = repr(made)
    assert all(repr(secret) not in shown for secret in (salt, stored_key, server_key))


def spelled_anew(said: bytes) -> bytes:
    """The same bytes in base64, but for bits that stand for nothing."""
    spelling = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    changed = said[:-2] + bytes((spelling[spelling.index(said[-2]) ^ 1],)) + b"="
    assert base64.b64decode(changed.rpartition(b"p=")[2]) == base64.b64decode(said.rpartition(b"p=")[2])
    return changed


WRONG: dict[str, Callable[[ScramClient, bytes], bytes]] = {
    "an older nonce": lambda client, told: client.final(told, nonce="fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j"),
    "only its own nonce": lambda client, told: client.final(told, nonce="fyko+d2lbbFgONRv9qkxdawL"),
    "a longer nonce": lambda client, told: client.final(told, nonce=told.decode()[2:].partition(",")[0] + "x"),
    "another binding": lambda client, told: client.final(told, binding=b"y,,"),
    "another authzid in the binding": lambda client, told: client.final(told, binding=b"n,a=bob,"),
    "a short proof": lambda client, told: client.final(told, cut=-1),
    "one byte of proof": lambda client, told: client.final(told, cut=1),
    "no proof": lambda client, told: client.final(told).rpartition(b",p=")[0],
    "an empty proof": lambda client, told: client.final(told).rpartition(b"p=")[0] + b"p=",
    "a long proof": lambda client, told: client.final(told)[:-1] + b"AAAA",
    "no base64": lambda client, told: client.final(told).rpartition(b"p=")[0] + b"p=!!!!",
    "its first message": lambda client, told: client.first(),
    "what we have said": lambda client, told: told,
    "nothing": lambda client, told: b"",
    "another proof": lambda client, told: client.final(told)[:-4] + b"AAA=",
    "an extension it insists on": lambda client, told: client.final(told, extensions=",m=x"),
    "an extension it has not signed": lambda client, told: client.final(told).replace(b",p=", b",x=y,p="),
    "another spelling of the proof": lambda client, told: spelled_anew(client.final(told)),
}


@pytest.mark.parametrize("wrong", list(WRONG))
def test_a_last_message_that_is_not_right(wrong: str) -> None:
    exchange, client = make_exchange(), ScramClient(Mechanism.SHA_256, "alice", "pencil")
    told = exchange.step(client.first())
    with pytest.raises(NotAuthenticated) as caught:
        exchange.step(WRONG[wrong](client, told))
    assert str(caught.value) == TEXT and exchange.proof is None
    with pytest.raises(NotAuthenticated):  # the right one comes too late
        exchange.step(client.final(told))
    assert exchange.proof is None


def test_what_was_overheard_cannot_be_said_again() -> None:
    client = ScramClient(Mechanism.SHA_256, "alice", "pencil")
    first = make_exchange(seed=1)
    final = client.final(first.step(client.first()))
    first.step(final)
    second = make_exchange(seed=2)
    second.step(client.first())
    with pytest.raises(NotAuthenticated):
        second.step(final)


def test_an_extension_that_is_signed_and_may_be_left_alone_is() -> None:
    exchange, client = make_exchange(), ScramClient(Mechanism.SHA_256, "alice", "pencil")
    assert client.believes(exchange.step(client.final(exchange.step(client.first()), extensions=",x=y")))


def test_steps_have_an_order_and_an_end() -> None:
    client = ScramClient(Mechanism.SHA_256, "alice", "pencil")
    told = make_exchange().step(client.first())
    with pytest.raises(NotAuthenticated):
        make_exchange().step(client.final(told))
    exchange = make_exchange()
    log_in(client, exchange)
    for said in (client.first(), client.final(told), b""):
        with pytest.raises(NotAuthenticated):
            exchange.step(said)


@pytest.mark.parametrize(
    ("gs2", "is_taken"),
    [("n,,", True), ("y,,", True), ("n,a=alice,", True), ("n,a=bob,", False), ("p=tls-unique,,", False), ("x,,", False),
     ("n,bob,", False), (",,", False), ("n,a=,", False), ("n,a=al=ice,", False)],
)  # fmt: skip
def test_binding_to_a_channel_and_acting_for_another(gs2: str, is_taken: bool) -> None:
    exchange, client = make_exchange(), ScramClient(Mechanism.SHA_256, "alice", "pencil", gs2=gs2)
    if is_taken:
        assert client.believes(log_in(client, exchange))
        return
    with pytest.raises(NotAuthenticated):
        log_in(client, exchange)
    assert exchange.proof is None


def test_a_token_is_told_apart_and_refused_in_the_end() -> None:
    client = ScramClient(Mechanism.SHA_256, "alice", "pencil", extensions=",tokenauth=true")
    assert parse_client_first(client.first().decode()).is_token
    with pytest.raises(NotAuthenticated):
        log_in(client, make_exchange())
    other = ScramClient(Mechanism.SHA_256, "alice", "pencil", extensions=",tokenauth=false,x=y")
    assert not parse_client_first(other.first().decode()).is_token
    assert other.believes(log_in(other, make_exchange()))


@mechanisms
def test_a_user_that_is_not_there_is_not_told_from_a_wrong_password(
    mechanism: Mechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[Counter[str]] = []
    told: list[bytes] = []
    errors: list[str] = []
    digest, new, compare = hmac.digest, hashlib.new, hmac.compare_digest
    count: Counter[str] = Counter()

    def counting(name: str, function: Callable) -> Callable:
        def counted(*arguments: object) -> object:
            count[name] += 1
            return function(*arguments)

        return counted

    for user, password in (("alice", "wrong"), ("nobody", "wrong"), ("nobody", "pencil")):
        client, exchange = ScramClient(mechanism, user, password), make_exchange(mechanism)
        count.clear()
        monkeypatch.setattr(hmac, "digest", counting("hmac", digest))
        monkeypatch.setattr(hashlib, "new", counting("hash", new))
        monkeypatch.setattr(hmac, "compare_digest", counting("compare", compare))
        told.append(exchange.step(client.first()))
        monkeypatch.undo()
        final = client.final(told[-1])
        monkeypatch.setattr(hmac, "digest", counting("hmac", digest))
        monkeypatch.setattr(hashlib, "new", counting("hash", new))
        monkeypatch.setattr(hmac, "compare_digest", counting("compare", compare))
        with pytest.raises(NotAuthenticated) as caught:
            exchange.step(final)
        monkeypatch.undo()
        errors.append(str(caught.value) + caught.value.help)
        counts.append(Counter(count))
    assert counts[0] == counts[1] == counts[2] and counts[0]["hmac"] == 5
    assert len(set(errors)) == 1
    fields = [dict(part.split("=", 1) for part in each.decode().split(",")) for each in told]
    assert [sorted(each) for each in fields] == [["i", "r", "s"]] * 3
    assert len({len(each["s"]) for each in fields}) == 1
    assert fields[1]["s"] == fields[2]["s"] != fields[0]["s"]


def test_nobody_is_let_in_who_is_not_there_even_with_a_fitting_proof() -> None:
    """Whoever knew the decoy's keys would know nothing."""
    client = ScramClient(Mechanism.SHA_256, "nobody", "x")
    exchange = make_exchange()
    told = exchange.step(client.first())
    fields = dict(part.split("=", 1) for part in told.decode().split(","))
    exchange._keys = derive(Mechanism.SHA_256, b"x", base64.b64decode(fields["s"]), int(fields["i"]))
    with pytest.raises(NotAuthenticated):
        exchange.step(client.final(told))


def test_nonces_are_never_the_same() -> None:
    random = Random(1)
    exchanges = [ScramExchange(Mechanism.SHA_256, lambda _: None, decoy, random) for _ in range(100)]
    told = {exchange.step(b"n,,n=a,r=x") for exchange in exchanges}
    assert len(told) == 100
    assert all(len(each.decode().partition(",")[0]) == len("r=x") + 32 for each in told)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=alice",
        b"n,,r=x,n=alice",
        b"n,,n=,r=x",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=\x7f",
        b"n,,n=al\0ice,r=x",
        b"n,,n=al=ice,r=x",
        b"n,,n=alice,r=x,",
        b"n,,n=alice,r=x,=y",
        b"n,,n=alice,r=x,y",
        b"n,,m=x,n=alice,r=x",
        b"n,,n=\xff,r=x",
        b"n,,n=alice,r=" + b"x" * 513,
        b"n,,n=" + b"x" * MAX_MESSAGE_BYTES + b",r=x",
    ],
)
def test_a_first_message_that_is_none(said: bytes) -> None:
    with pytest.raises(NotAuthenticated):
        make_exchange().step(said)


PIECES = ("n", "y", "p=", "a=x", "n=", "alice", "r=", "=2C", "=3D", "=", ",", "c=", "biws", "p=AAAA", "m=", "\0", "é")
words = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.lists(st.sampled_from(PIECES), max_size=12).map(lambda parts: "".join(parts).encode()),
)


@settings(max_examples=500, deadline=None)
@given(words, words)
def test_whatever_is_said_first_or_last_there_is_one_error(first: bytes, final: bytes) -> None:
    exchange = make_exchange()
    try:
        told = exchange.step(first)
    except NotAuthenticated:
        with pytest.raises(NotAuthenticated):
            exchange.step(final)
        return
    assert len(told) < MAX_MESSAGE_BYTES + 200
    with pytest.raises(NotAuthenticated):
        exchange.step(final)
    client = ScramClient(Mechanism.SHA_256, "alice", "pencil")
    exchange = make_exchange()
    exchange.step(client.first())
    with pytest.raises(NotAuthenticated):
        exchange.step(final)


@settings(max_examples=300, deadline=None)
@given(words)
def test_the_parsers_raise_nothing_else(said: bytes) -> None:
    text = said.decode("utf-8", "replace")
    for parse in (parse_client_first, parse_client_final):
        with suppress(NotAuthenticated):
            parse(text)


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=50))
def test_names_come_through_as_they_are(name: str) -> None:
    client = ScramClient(Mechanism.SHA_256, name, "x")
    assert parse_client_first(client.first().decode()).user == name


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=3))
def test_no_byte_of_either_message_may_be_another(at: int, other: bytes) -> None:
    client, exchange = ScramClient(Mechanism.SHA_256, "alice", "pencil"), make_exchange()
    told = exchange.step(client.first())
    final = client.final(told)
    place = at % len(final)
    changed = final[:place] + other + final[place + 1 :]
    if changed == final:
        return
    with pytest.raises(NotAuthenticated):
        exchange.step(changed)
