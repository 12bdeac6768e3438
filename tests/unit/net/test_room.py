"""Memory that connections share: nobody gets more than there is, nobody waits for ever, who holds most has to go."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.net.room import Holders, Room


class Taker:
    """Takes room, or waits for it."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.has = 0
        self.wants = 0

    def take(self, size: int) -> None:
        if self._room.take(size):
            self.has += size
        else:
            self.wants = size
            self._room.wait(size, self.granted, self.has)

    def granted(self) -> None:
        self.has += self.wants
        self.wants = 0

    def give(self) -> None:
        has, self.has = self.has, 0
        self._room.give(has)


def test_who_finds_no_room_gets_it_in_turn() -> None:
    room = Room(100)
    first, second, third = (Taker(room) for _ in range(3))
    first.take(80)
    second.take(30)
    third.take(10)  # there would be room, but another waits for it
    assert (second.has, third.has, room.is_crowded) == (0, 0, True)
    first.give()
    assert (second.has, third.has, room.is_crowded) == (30, 10, False)
    assert room.taken_bytes == 40


def test_who_needs_more_than_there_is_gets_it_alone() -> None:
    room = Room(100)
    small, large = Taker(room), Taker(room)
    small.take(1)
    large.take(500)
    assert large.has == 0
    small.give()
    assert large.has == 500


def test_who_waits_no_longer_is_in_nobodys_way() -> None:
    room = Room(100)
    first, gone, last = (Taker(room) for _ in range(3))
    first.take(80)
    gone.take(50)
    last.take(20)
    room.leave(gone.granted)
    assert (gone.has, last.has) == (0, 20)


def test_all_who_have_some_and_wait_for_more_get_on() -> None:
    room = Room(100)
    takers = [Taker(room) for _ in range(5)]
    for taker in takers:
        taker.take(20)
    for taker in takers:
        taker.take(30)
    for taker in takers:
        assert taker.wants == 0
        taker.give()
    assert room.taken_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["take", "give"]), st.integers(1, 150)), max_size=60))
def test_nobody_is_forgotten(steps: list[tuple[int, str, int]]) -> None:
    room = Room(100)
    takers = [Taker(room) for _ in range(5)]
    for who, what, size in steps:
        taker = takers[who]
        if taker.wants == 0:
            taker.take(size) if what == "take" else taker.give()
        assert room.taken_bytes == sum(taker.has for taker in takers)
        assert room.is_crowded == any(taker.wants for taker in takers)
        busy = [taker for taker in takers if taker.has and not taker.wants]
        assert busy or not room.is_crowded
        assert room.taken_bytes <= 100 or len(busy) == 1 or not room.is_crowded or room.taken_bytes <= 250 + 100
    for _ in takers:
        for taker in takers:
            if taker.wants == 0:
                taker.give()
    assert (room.taken_bytes, room.is_crowded) == (0, False)


def test_who_holds_most_goes_first() -> None:
    gone: list[tuple[str, int]] = []
    holders: Holders[str] = Holders(100, lambda who, held: gone.append((who, held)))
    holders.holds("a", 40)
    holders.holds("b", 50)
    holders.holds("a", 45)
    assert (gone, holders.held_bytes) == ([], 95)
    holders.holds("c", 20)
    assert (gone, holders.held_bytes) == ([("b", 50)], 65)
    holders.holds("b", 0)
    holders.holds("a", 0)
    assert (gone, holders.held_bytes) == ([("b", 50)], 20)
