"""Ids of producers: none twice over any number of brokers, and some at hand while the store is away."""

import pytest

from penstock.engine.producer_ids import ProducerIds
from penstock.errors import Code, PenstockError
from penstock.ports.metadata import MetadataUnavailable
from penstock.testing.memory_metadata import SimulatedEtcd
from penstock.testing.virtual_clock import run_virtual


def test_none_is_given_out_twice_with_or_without_some_at_hand() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd(1)
        one, other = (ProducerIds(etcd.client(name)) for name in ("one", "other"))
        taken = [await one.take(), await other.take()]
        for each in (one, other, one, other):
            await each.keep_some()
            taken += [await each.take() for _ in range(1700)]
        assert len(set(taken)) == len(taken)

    run_virtual(main, 1)


def test_producers_come_while_the_store_is_away_if_some_are_at_hand() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd(1)
        prepared, other = (ProducerIds(etcd.client(name)) for name in ("prepared", "other"))
        await prepared.keep_some()
        etcd.link("prepared").cut = etcd.link("other").cut = True
        assert len({await prepared.take() for _ in range(2000)}) == 2000
        for each in (prepared, other):
            with pytest.raises(PenstockError) as refused:
                await each.take()
            assert refused.value.code is Code.COORDINATOR_LOADING
        with pytest.raises(MetadataUnavailable):
            await prepared.keep_some()

    run_virtual(main, 1)
