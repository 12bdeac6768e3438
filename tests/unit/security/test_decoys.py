"""Names that are nobody's: what is told of them, and the work for them, is as for those of users."""

import base64
import hashlib
import hmac
import re
import secrets
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.security.scram_client import ScramClient
from tests.unit.security.security_world import PEER, Node, at_once
from tests.unit.security.test_users import SECRET, with_node

from penstock.engine.access import Access
from penstock.errors import StartupError
from penstock.security import paths
from penstock.security.authentication import Peer, Plain
from penstock.security.decoys import Models, decoy_keys, decoy_password
from penstock.security.directory import Directory, Unreadable, encode_decoy
from penstock.security.guard import Guard
from penstock.security.modes import Mode
from penstock.security.refusal import NotAuthenticated
from penstock.security.scram import ITERATIONS, SALT_BYTES, Mechanism, ScramKeys
from penstock.security.sealing import SealingKeys
from penstock.security.secret import Secret
from penstock.testing.memory_metadata import MemoryStore, SimulatedEtcd
from penstock.testing.virtual_clock import VirtualClock, run_virtual

SHA_256, SHA_512 = Mechanism.SHA_256, Mechanism.SHA_512
HIDDEN = b"h" * 32
NAMES = [f"nobody-{number}" for number in range(600)]


def keys(iterations: int = ITERATIONS, salt: bytes = b"\xff" * SALT_BYTES) -> ScramKeys:
    return ScramKeys(salt, b"k" * 32, b"k" * 32, iterations)


def told(models: Models, mechanism: Mechanism = SHA_256) -> Counter[tuple[int, int]]:
    """Iterations and size of the salt, of names that are nobody's."""
    made = (decoy_keys(HIDDEN, models, mechanism, name) for name in NAMES)
    return Counter((each.iterations, len(each.salt)) for each in made)


def test_a_name_keeps_its_decoy_which_is_no_other_ones() -> None:
    models = Models([{SHA_256: keys(), SHA_512: keys()}])
    made = {
        (secret, mechanism, name): decoy_keys(secret, models, mechanism, name)
        for secret in (HIDDEN, b"i" * 32)
        for mechanism in Mechanism
        for name in ("x", "y")
    }
    for (secret, mechanism, name), each in made.items():
        assert each == decoy_keys(secret, models, mechanism, name)
        assert len(each.stored_key) == mechanism.size_bytes and each.salt not in each.stored_key
    assert len({each.salt for each in made.values()}) == len({each.stored_key for each in made.values()}) == 8


def test_decoys_are_spread_as_users_are() -> None:
    """Who sees what is told of a name knows no more than how often users are told of like that."""
    ours, small, java = {each: keys() for each in Mechanism}, {SHA_256: keys(4096, b"\0" * 64)}, {SHA_512: keys(16_384)}
    models = Models([ours] * 6 + [small] * 3 + [java] * 3)
    share = len(NAMES) / 9
    assert told(models) == pytest.approx({(ITERATIONS, SALT_BYTES): 6 * share, (4096, 64): 3 * share}, rel=0.2)
    assert told(models, SHA_512) == pytest.approx(
        {(ITERATIONS, SALT_BYTES): 6 * share, (16_384, SALT_BYTES): 3 * share}, rel=0.2
    )
    work = Counter(
        (mechanism, each.iterations) for mechanism, each in (decoy_password(HIDDEN, models, name) for name in NAMES)
    )
    share = len(NAMES) / 12
    assert work == pytest.approx(
        {(SHA_256, ITERATIONS): 6 * share, (SHA_256, 4096): 3 * share, (SHA_512, 16_384): 3 * share}, rel=0.25
    )
    for name in NAMES:  # what is told of a name fits the work for it
        mechanism, made = decoy_password(HIDDEN, models, name)
        assert decoy_keys(HIDDEN, models, mechanism, name) == made


def test_without_users_they_are_like_the_first_one_will_be() -> None:
    for models in (Models(), Models([{}]), Models([{SHA_512: keys(4096)}])):
        assert told(models) == {(ITERATIONS, SALT_BYTES): len(NAMES)}


def test_another_user_leaves_nearly_all_decoys_as_they_were() -> None:
    ours, java = {SHA_256: keys()}, {SHA_256: keys(4096)}
    before, after = Models([ours] * 50 + [java] * 50), Models([ours] * 51 + [java] * 50)
    made = [[decoy_keys(HIDDEN, models, SHA_256, name) for name in NAMES] for models in (before, after)]
    changed = [(one, other) for one, other in zip(*made, strict=True) if one != other]
    assert len(changed) < len(NAMES) / 50
    assert all(one.salt != other.salt for one, other in changed), "as when a password is changed"


def java_salt() -> bytes:
    """`new BigInteger(130, random).toString(36)`, as Kafka's ScramFormatter draws one."""
    number, digits = secrets.randbits(130), ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits.encode()


@pytest.mark.parametrize(
    ("salt", "form"),
    [
        (b"\x00\x01\xfe\xff" * 4, rb"[\x00-\xff]{16}"),
        (b"1a" + b"z" * 19 + b"00000", rb"1[0-9a-z]{25}"),  # of 26 characters, those of Java begin with a 1
        (b"6f" * 10, rb"[0-9a-f]{20}"),
        (b"6F" * 10, rb"[0-9A-F]{20}"),
        (b"0123456789", rb"[0-9]{10}"),
        (b"1b4e28ba-2fa1-11d2-883f-0016d3cca427", rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
        (b"QSXCR+Q6sek8bf92", rb"[0-9A-Za-z]{5}\+[0-9A-Za-z]{10}"),
        (b"zzzzzzzzzzzzzzzzzzzzzzzzzz", rb"[0-9a-z]{26}"),
    ],
)
def test_a_salt_looks_like_those_of_users(salt: bytes, form: bytes) -> None:
    models = Models([{SHA_256: keys(salt=salt)}])
    salts = {decoy_keys(HIDDEN, models, SHA_256, name).salt for name in NAMES}
    assert len(salts) == len(NAMES) and all(re.fullmatch(form, each, re.DOTALL) for each in salts)
    assert {each for made in salts for each in made} > {*salt} or salt.isdigit()
    if form.startswith(rb"1"):
        assert all(int(each, 36) < 1 << 130 for each in salts)


def test_salts_of_kafkas_tools_are_drawn_as_these_draw_them() -> None:
    salts = [java_salt() for _ in range(400)]
    models = Models([{SHA_256: keys(4096, salt)} for salt in salts])
    made = [decoy_keys(HIDDEN, models, SHA_256, name).salt for name in NAMES]
    share = Counter(map(len, made))[26] / len(made)
    assert share == pytest.approx(Counter(map(len, salts))[26] / len(salts), abs=0.1)
    assert {each[:1] for each in made if len(each) == 26} == {b"1"}


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=1024), st.text(st.characters(codec="utf-8"), max_size=30))
def test_a_salt_of_any_user_can_be_followed(salt: bytes, name: str) -> None:
    made = decoy_keys(HIDDEN, Models([{SHA_512: keys(5000, salt)}]), SHA_512, name)
    assert (len(made.salt), made.iterations, len(made.stored_key)) == (len(salt), 5000, 64)


# --- by what somebody who asks sees, and by the work


async def first_answer(node: Node, user: str, mechanism: Mechanism = SHA_256, extensions: str = "") -> dict[str, str]:
    login = node.authenticator.begin_scram(mechanism, PEER)
    said = await login.step(ScramClient(mechanism, user, "wrong", extensions=extensions).first())
    return dict(part.split("=", 1) for part in said.decode().split(","))


def test_a_user_that_kafkas_tools_have_made_is_not_told_from_a_name() -> None:
    async def test(node: Node) -> None:
        await node.users.create("ours", SECRET)
        for name in ("theirs", "others"):
            for mechanism in Mechanism:
                salted = Secret(b"s" * mechanism.size_bytes)
                await node.users.set_salted(name, mechanism, salted, java_salt()[-20:], 4096)
        await node.users.create("keyless", None)
        seen = {}
        for name in ("ours", "theirs", "keyless", *NAMES[:60]):
            answer = await first_answer(node, name)
            seen[name] = answer["i"], len(answer["s"])
        of_nobody = {seen[name] for name in NAMES[:60]}
        assert of_nobody == {seen["ours"], seen["theirs"]} and seen["keyless"] in of_nobody

    with_node(test)


@pytest.mark.parametrize("mechanism", Mechanism)
def test_a_token_of_a_users_name_is_not_told_from_one_of_nobodys(mechanism: Mechanism) -> None:
    """To ask twice, once for a token, tells the same of both."""

    async def test(node: Node) -> None:
        await node.users.create("ours", SECRET)
        for name in ("ours", "nobody"):
            as_user, as_token = [
                {(await first_answer(node, name, mechanism, extensions))["s"] for _ in range(3)}
                for extensions in ("", ",tokenauth=true")
            ]
            assert (len(as_user), len(as_token)) == (1, 1)
            assert as_user != as_token

    with_node(test)


async def fail(node: Node, name: str, mechanism: Mechanism | None, peer: Peer) -> None:
    """By a wrong password; of SCRAM, by a proof that took the client no work, which would count here as well."""
    if mechanism is None:
        with pytest.raises(NotAuthenticated):
            await node.authenticator.authenticate(Plain(name, Secret("wrong")), peer)
        return
    login = node.authenticator.begin_scram(mechanism, peer)
    nonce, *_ = (await login.step(ScramClient(mechanism, name, "wrong").first())).split(b",")
    proof = base64.b64encode(b"x" * mechanism.size_bytes)
    with pytest.raises(NotAuthenticated):
        await login.step(b"c=biws," + nonce + b",p=" + proof)


def test_the_same_work_for_a_user_and_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every HMAC, hash and PBKDF2 with its iterations, from the first message to the refusal."""
    count: Counter[Any] = Counter()

    def counting(module: Any, name: str, detail: Callable[[tuple], object]) -> None:
        function = getattr(module, name)

        def counted(*arguments: Any) -> Any:
            count[name, detail(arguments)] += 1
            return function(*arguments)

        monkeypatch.setattr(module, name, counted)

    async def test(node: Node) -> None:
        await node.users.create("ours", SECRET)
        await node.users.create("off", SECRET)
        await node.users.alter("off", is_enabled=False)
        await node.users.create("keyless", None)
        counting(hmac, "digest", lambda arguments: arguments[2])
        counting(hmac, "compare_digest", lambda arguments: len(arguments[1]))
        counting(hashlib, "new", lambda arguments: arguments[0])
        counting(hashlib, "pbkdf2_hmac", lambda arguments: (arguments[0], arguments[3]))
        counting(hashlib, "shake_256", lambda arguments: len(arguments[0]))
        for mechanism in (None, *Mechanism):
            work = {}
            for at, name in enumerate(("ours", "off", "keyless", "nobody", "nobody else")):
                peer = Peer(f"10.0.0.{at}", "kafka")
                count.clear()
                await fail(node, name, mechanism, peer)
                work[name] = Counter(count)
            assert all(each == work["ours"] for each in work.values()), work
            assert sum(work["ours"].values()) > 5

    with_node(test)


def test_decoys_outlive_the_sealing_key_and_are_the_same_on_all_brokers() -> None:
    def guard(store: Any, seed: int, sealing: bytes) -> Guard:
        return Guard(
            store,
            Access(),
            VirtualClock(),
            Random(seed),
            at_once,
            lambda error: None,
            mode=Mode.CLOSED,
            supers=(),
            sealing=SealingKeys(Secret(sealing * 32)),
        )

    async def answers(guard: Guard) -> list[bytes]:
        await guard.start()
        found = []
        for name in NAMES[:5]:
            login = guard.authenticator.begin_scram(SHA_256, PEER)
            found.append((await login.step(ScramClient(SHA_256, name, "x").first())).partition(b",")[2])
        await guard.stop()
        return found

    async def main() -> None:
        etcd = SimulatedEtcd(max_delay_s=0.0)
        here = await answers(guard(etcd.client("broker 1"), 1, b"a"))
        assert await answers(guard(etcd.client("broker 2"), 2, b"a")) == here
        assert await answers(guard(etcd.client("broker 1"), 3, b"b")) == here
        assert await answers(guard(MemoryStore(), 4, b"b")) != here

    run_virtual(main, 1)


def test_a_secret_that_cannot_be_read_stops_the_start() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd(max_delay_s=0.0)
        await etcd.client("x").transact(put={paths.DECOY: encode_decoy(b"short")})
        with pytest.raises(StartupError, match="sec/decoy"):
            await Node(etcd).begin()
        with pytest.raises(Unreadable):
            Directory.decode(await etcd.client("x").list(paths.SECURITY))

    run_virtual(main, 1)
    assert "68" not in repr(Directory(decoy=Secret(HIDDEN)))
