"""What the coordinator of a share group has done by another broker."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.protocols.internal.two_brokers import TwoBrokers, with_two_brokers

from penstock.engine.queues.answers import Want
from penstock.engine.queues.share_ledgers import MOST_PLACES, Deed, Order, Place, ShareLedgers, Standing
from penstock.errors import Code, PenstockError
from penstock.net.connection import PeerError
from penstock.protocols.internal import share_orders
from penstock.protocols.internal.share_orders import GivenOrders

_OFFSETS = st.integers(-1, 1 << 60)
_PLACES = st.lists(st.builds(Place, st.uuids(), st.integers(0, 10_000), _OFFSETS), max_size=5).map(tuple)
_ORDERS = st.builds(
    Order, st.sampled_from(Deed), st.text(max_size=300), st.integers(0, 1 << 30), st.text(max_size=36), _PLACES
)
_STANDINGS = st.lists(
    st.builds(Standing, _OFFSETS, _OFFSETS, st.integers(0, 1 << 30), st.booleans(), st.none()), max_size=5
)


@given(_ORDERS)
def test_an_order_comes_as_it_was_given(order: Order) -> None:
    assert share_orders.decode(memoryview(share_orders.encode(order))) == order


@given(_STANDINGS)
def test_an_answer_comes_as_it_was_given(standings: list[Standing]) -> None:
    assert share_orders.decode_answer(memoryview(share_orders.encode_answer(standings))) == standings


@given(_ORDERS, _STANDINGS, st.data())
def test_what_is_cut_or_has_more_behind_it_is_refused(
    order: Order, standings: list[Standing], data: st.DataObject
) -> None:
    for whole, decode in (
        (share_orders.encode(order), share_orders.decode),
        (share_orders.encode_answer(standings), share_orders.decode_answer),
    ):
        for body in (whole[: data.draw(st.integers(0, len(whole) - 1))], whole + b"\0"):
            if body == b"\0":
                continue  # asks for the versions
            with pytest.raises(PeerError):
                decode(memoryview(body))


@given(st.binary(max_size=80))
def test_anything_else_is_refused(body: bytes) -> None:
    for decode in (share_orders.decode, share_orders.decode_answer):
        try:
            decode(memoryview(body))
        except PeerError:
            continue


def test_a_count_beyond_the_limit_is_refused_before_anything_is_made_of_it() -> None:
    places = [Place(UUID(int=1), 0)] * (MOST_PLACES + 1)
    with pytest.raises(PeerError):
        share_orders.decode(memoryview(share_orders.encode(Order(Deed.LOOK, "g", 0, "", places))))


def test_whoever_leads_does_as_it_is_told() -> None:
    async def body(it: TwoBrokers) -> None:
        await it.write(*[b"x"] * 10)
        queues = it.door.engine.queues
        ledgers = it.engine.share_ledgers
        ledgers.other_leaders = GivenOrders(lambda broker_id: it.peer)
        place, gone = Place(it.known.topic_id, 0, 4), Place(UUID(int=9), 0)

        async def told(deed: Deed, epoch: int, *places: Place) -> list[Standing]:
            return list((await ledgers.order(Order(deed, "g", epoch, "m", places))).values())

        (nowhere,) = await told(Deed.LOOK, 0, place)
        assert (nowhere.start, nowhere.lag, nowhere.error) == (-1, -1, None)
        begun, missing = await told(Deed.ALTER, 3, place, gone)
        assert (begun.start, begun.error) == (4, None)
        assert missing.error is not None and missing.error.code is Code.UNKNOWN_TOPIC_ID
        (there,) = await told(Deed.LOOK, 0, place)
        assert (there.start, there.lag) == (4, 6)
        await queues.lease(it.led, Want("g", "m", 3, bound=True))
        await told(Deed.EXPEL, 3, place)
        assert (await queues.figures(it.led, "g")).leased == 0
        (late,) = await told(Deed.FORGET, 2, place)
        assert late.error is not None and late.error.code is Code.COORDINATOR_FENCED
        (forgotten,) = await told(Deed.FORGET, 3, place)
        assert forgotten.was_known and await queues.groups(it.led) == []

    with_two_brokers(body)


def test_a_leader_that_is_not_there_is_told_of_each_place() -> None:
    async def body(it: TwoBrokers) -> None:
        ledgers = it.engine.share_ledgers
        ledgers.other_leaders = GivenOrders(lambda broker_id: None)
        found = await ledgers.order(Order(Deed.FORGET, "g", 1, "", [Place(it.known.topic_id, 0)]))
        assert [each.error.code for each in found.values() if each.error] == [Code.NOT_AVAILABLE]
        ledgers.other_leaders = GivenOrders(lambda broker_id: it.peer)
        it.led.follow(replace(it.led.state, leader=3))
        found = await ledgers.order(Order(Deed.FORGET, "g", 1, "", [Place(it.known.topic_id, 0)]))
        assert [each.error.code for each in found.values() if each.error] == [Code.NOT_LEADER]

    with_two_brokers(body)


def test_whoever_leads_by_now_is_asked_next() -> None:
    class Moved:
        """Says that it does not lead any more, once, and only then others hear of it."""

        def __init__(self, it: TwoBrokers) -> None:
            self._it = it
            self.asked: list[int] = []

        async def carry_out(self, broker_id: int, order: Order) -> list[Standing]:
            self.asked.append(broker_id)
            if len(self.asked) == 1:
                self._it.learn(leader=3)
                return [Standing(error=PenstockError(Code.NOT_LEADER, "no more"))] * len(order.places)
            return [Standing(was_known=True)] * len(order.places)

    async def body(it: TwoBrokers) -> None:
        ledgers: ShareLedgers = it.engine.share_ledgers
        others = ledgers.other_leaders = Moved(it)
        found = await ledgers.order(Order(Deed.FORGET, "g", 1, "", [Place(it.known.topic_id, 0)]))
        assert [each.was_known for each in found.values()] == [True] and others.asked == [1, 3]

    with_two_brokers(body)
