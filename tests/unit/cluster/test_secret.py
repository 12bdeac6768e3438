"""The cluster's secret: who has another one does not join, and the store never tells what it is."""

import asyncio
import hashlib
from collections.abc import Mapping
from random import Random

import orjson
import pytest

from penstock.cluster import keys
from penstock.cluster.image import BrokerRecord
from penstock.cluster.secret import ClusterSecret, SecretCheck
from penstock.errors import StartupError, WrongSettings
from penstock.testing.memory_metadata import SimulatedEtcd
from penstock.testing.virtual_clock import VirtualClock, run_virtual

OURS, THEIRS = ClusterSecret(b"o" * 32), ClusterSecret(b"t" * 32)


class Store:
    """A store, and brokers that ask it whether they belong there."""

    def __init__(self, *registered: int, words: Mapping[int, bool | None] | None = None) -> None:
        self.etcd = SimulatedEtcd()
        self.client = self.etcd.client("test")
        self.words = words or {}
        self.asked: list[int] = []
        self._registered = registered

    async def begin(self) -> "Store":
        for broker_id in self._registered:
            record = BrokerRecord(broker_id, "h", 1, "h", 2, None, 1, clean=True)
            await self.client.transact(put={keys.broker_key(broker_id): record.encode()})
        return self

    async def _recognises(self, broker: BrokerRecord) -> bool | None:
        self.asked.append(broker.broker_id)
        return self.words.get(broker.broker_id)

    async def check(self, secret: ClusterSecret | None, node_id: int = 9, *, accept_new: bool = False) -> None:
        store = self.etcd.client(f"broker {node_id}")
        await SecretCheck(
            secret, store, "etcd://e", node_id, VirtualClock(), Random(node_id), self._recognises, accept_new
        ).run()

    @property
    def verifier(self) -> bytes | None:
        entry = self.etcd.state.get(keys.SECRET)
        return entry.value if entry is not None else None


def test_a_verifier_fits_its_secret_alone_and_tells_neither_it_nor_whether_two_are_equal() -> None:
    one, two = OURS.make_verifier(Random(1)), OURS.make_verifier(Random(2))
    assert one != two
    assert OURS.fits(one) and OURS.fits(two)
    assert not THEIRS.fits(one)
    fields = orjson.loads(one)
    assert fields["version"] == 1
    for known in (b"o" * 32, hashlib.sha256(b"o" * 32).digest()):
        assert known.hex() not in one.decode()
    for changed in ({"verifier": "0" * 64}, {"salt": "0" * 64}, {"version": 2}):
        assert not OURS.fits(orjson.dumps(fields | changed))


def test_the_first_broker_leaves_a_verifier_and_all_others_have_to_fit_it() -> None:
    async def main() -> None:
        store = await Store().begin()
        await store.check(OURS)
        made = store.verifier
        assert made is not None and OURS.fits(made)
        await store.check(OURS, 8)
        for wrong in (THEIRS, None):
            with pytest.raises(WrongSettings, match=r"etcd://e.*--cluster-secret-file"):
                await store.check(wrong, 7)
        assert store.verifier == made
        assert store.etcd.state.revision == 1

    run_virtual(main, 1)


def test_of_two_that_come_first_at_once_with_two_secrets_one_is_refused() -> None:
    async def main() -> None:
        for seed in range(20):
            store = await Store().begin()
            store.etcd.random.seed(seed)
            told = await asyncio.gather(store.check(OURS, 1), store.check(THEIRS, 2), return_exceptions=True)
            assert [type(each) for each in told if each] == [WrongSettings]
            assert store.verifier is not None
            assert (OURS if told[0] is None else THEIRS).fits(store.verifier)

    run_virtual(main, 1)


def test_certificates_alone_leave_no_verifier() -> None:
    async def main() -> None:
        store = await Store().begin()
        await store.check(None)
        assert store.verifier is None

    run_virtual(main, 1)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((True, True, True), None),
        ((True, True, False), None),
        ((True, True, None), None),
        ((False, False, False), WrongSettings),
        ((True, False, False), WrongSettings),
    ],
)
def test_where_no_verifier_is_most_brokers_of_an_earlier_release_say_who_is_one_of_them(
    words: tuple[bool | None, ...], error: type[StartupError] | None
) -> None:
    async def main() -> None:
        store = await Store(1, 2, 3, words=dict(enumerate(words, 1))).begin()
        began = asyncio.get_running_loop().time()
        if error is None:
            await store.check(OURS, 4)
        else:
            with pytest.raises(error, match=r"etcd://e refuse this one"):
                await store.check(OURS, 4)
        assert (store.verifier is not None) is (error is None)
        assert set(store.asked) == {1, 2, 3}
        assert asyncio.get_running_loop().time() - began < 6.0

    run_virtual(main, 1)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((None, None, None), StartupError),
        ((True, False, None), StartupError),
        ((False, None, None), WrongSettings),
        ((True, None, None), None),
    ],
)
def test_those_that_live_and_cannot_be_asked_are_waited_for_and_not_passed_over(
    words: tuple[bool | None, ...], error: type[StartupError] | None
) -> None:
    """A broker of somebody else's, which reaches none of them, would lock them out by a verifier of its secret."""

    async def main() -> None:
        store = await Store(1, 2, 3, words=dict(enumerate(words, 1))).begin()
        began = asyncio.get_running_loop().time()
        if error is None:
            await store.check(OURS, 4)
        else:
            with pytest.raises(error) as raised:
                await store.check(OURS, 4)
            assert type(raised.value) is error
            assert "broker 3 at h:2 cannot be asked" in str(raised.value) or error is WrongSettings
        assert (store.verifier is not None) is (error is None)
        assert asyncio.get_running_loop().time() - began >= 6.0

    run_virtual(main, 1)


def test_brokers_of_an_earlier_release_that_died_are_waited_for_until_their_leases_end() -> None:
    async def main() -> None:
        store = await Store().begin()
        await _registered(store, 1, lease_s=4)
        await _registered(store, 2, lease_s=4)
        await store.check(OURS, 3)
        assert set(store.asked) == {1, 2}
        assert store.verifier is not None and OURS.fits(store.verifier)
        assert store.etcd.state.get(keys.broker_key(1)) is None

    run_virtual(main, 1)


def test_a_broker_asks_no_earlier_start_of_its_own() -> None:
    async def main() -> None:
        store = await Store(3, words={3: False}).begin()
        await store.check(OURS, 3)
        assert store.asked == []

    run_virtual(main, 1)


def test_a_secret_is_replaced_by_an_operators_word_when_nobody_with_the_old_one_is_there() -> None:
    async def main() -> None:
        store = await Store().begin()
        await store.check(OURS)
        await (await _registered(store, 1)).check(OURS, 2, accept_new=True)  # nothing to replace
        with pytest.raises(WrongSettings, match=r"broker 1 is registered.*stop all"):
            await store.check(THEIRS, 2, accept_new=True)
        assert store.verifier is not None and OURS.fits(store.verifier)
        await store.client.transact(delete=[keys.broker_key(1)])
        await store.check(THEIRS, 2, accept_new=True)
        assert THEIRS.fits(store.verifier)
        with pytest.raises(WrongSettings):
            await store.check(OURS, 1)

    run_virtual(main, 1)


def test_a_broker_that_was_killed_does_not_keep_its_secret_longer_than_its_lease() -> None:
    async def main() -> None:
        store = await Store().begin()
        await store.check(OURS)
        await (await _registered(store, 1, lease_s=4)).check(THEIRS, 2, accept_new=True)
        assert store.verifier is not None and THEIRS.fits(store.verifier)
        assert store.etcd.state.get(keys.broker_key(1)) is None

    run_virtual(main, 1)


async def _registered(store: Store, broker_id: int, lease_s: int = 60) -> Store:
    record = BrokerRecord(broker_id, "h", 1, "h", 2, None, 1, clean=True)
    lease = await store.client.grant(lease_s)
    await store.client.transact(put_leased={keys.broker_key(broker_id): record.encode()}, lease=lease)
    return store
