"""PLAIN and API keys as they are said: taken apart, or one error; secrets that do not show themselves."""

import copy
import pickle
import traceback
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security.api_keys import MAX_KEY_CHARS, digest_of, make_key, parse_key
from penstock.security.plain import MAX_MESSAGE_BYTES, parse_plain
from penstock.security.refusal import NotAuthenticated
from penstock.security.secret import Secret


@pytest.mark.parametrize(
    ("said", "user", "password"),
    [
        (b"\0alice\0secret", "alice", b"secret"),
        (b"alice\0alice\0secret", "alice", b"secret"),
        ("\0Żółć\0ключ".encode(), "Żółć", "ключ".encode()),
        (b"\0alice\0 ", "alice", b" "),
    ],
)
def test_plain(said: bytes, user: str, password: bytes) -> None:
    found = parse_plain(said)
    assert found.user == user and found.password.reveal() == password
    assert "secret" not in repr(found) and "secret" not in f"{found.password} {found.password!r}"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\0",
        b"\0\0",
        b"alice\0secret",
        b"\0alice\0",
        b"\0\0secret",
        b"\0alice\0secret\0",
        b"\0\0alice\0secret",
        b"bob\0alice\0secret",
        b"Alice\0alice\0secret",
        b"\0\xff\0secret",
        b"\0alice\0\xff",
        b"\0alice\0" + b"x" * MAX_MESSAGE_BYTES,
    ],
)
def test_what_is_no_plain(said: bytes) -> None:
    with pytest.raises(NotAuthenticated):
        parse_plain(said)


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(st.binary(max_size=300), st.lists(st.sampled_from([b"\0", b"a", b"\xff", b"pk_", b"_"])).map(b"".join))
)
def test_whatever_is_said_there_is_one_error(said: bytes) -> None:
    try:
        found = parse_plain(said)
        assert found.user and found.password.reveal()
    except NotAuthenticated:
        pass
    with pytest.raises(NotAuthenticated):
        parse_key(said)


def test_a_key_is_its_id_and_what_cannot_be_guessed() -> None:
    random = Random(1)
    made = make_key(random)
    key_id, digest = parse_key(made.text.reveal())
    assert key_id == made.id and digest == digest_of(made.text)
    assert made.text.reveal().endswith(made.secret.reveal()) and len(made.secret.reveal()) == 43
    assert len({make_key(random).text.reveal() for _ in range(100)}) == 100
    assert made.secret.reveal().decode() not in repr(made)


@pytest.mark.parametrize("change", [b"", b"x", b"\n", b" "])
def test_what_is_no_key(change: bytes) -> None:
    said = make_key(Random(1)).text.reveal()
    for other in (said[:-1] + change, change + said if change else said[1:], said + b"x" * MAX_KEY_CHARS):
        if other != said and len(other) != len(said):
            with pytest.raises(NotAuthenticated):
                parse_key(other)
    with pytest.raises(NotAuthenticated):
        parse_key(said.upper())
    with pytest.raises(NotAuthenticated) as caught:
        parse_key(b"x" * (MAX_KEY_CHARS + 1))
    assert "101 characters" in caught.value.reason  # its length alone was looked at


def test_a_secret_shows_itself_to_nobody() -> None:
    secret = Secret("hunter2")
    for shown in (repr(secret), str(secret), f"{secret}", f"{secret!s:>20}", repr([secret]), repr({"a": secret})):
        assert "hunter2" not in shown
    for dump in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            dump(secret)
    with pytest.raises(TypeError):
        hash(secret)
    assert "hunter2" not in "".join(traceback.format_exception(ValueError(secret)))
    assert secret == Secret(b"hunter2") and secret != Secret("hunter3") and secret != b"hunter2"
