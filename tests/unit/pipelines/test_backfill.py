"""Which offsets a backfill has: against a model that counts every single one."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.pipelines.backfill import split_rounds, subtract

PLACES = [("a", "0"), ("a", "1"), ("b", "0")]
spans = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda pair: (min(pair), max(pair)))
maps = st.dictionaries(st.sampled_from(PLACES), spans)


@given(st.fixed_dictionaries(dict.fromkeys(PLACES, spans)), st.lists(maps, max_size=4))
def test_no_gap_and_no_overlap(wanted: dict, taken: list[dict]) -> None:
    rounds = split_rounds(subtract(wanted, taken), wanted)
    for place in PLACES:
        topic, partition = place
        read = [offset for start, end in rounds for offset in range(start[topic][partition], end[topic][partition])]
        free = set(range(*wanted[place])) - {each for other in taken for each in range(*other.get(place, (0, 0)))}
        assert sorted(read) == sorted(free), "each free offset once"


def test_every_round_names_every_partition() -> None:
    wanted = {("a", "0"): (0, 10), ("a", "1"): (5, 5)}
    rounds = split_rounds(subtract(wanted, [{("a", "0"): (3, 4)}]), wanted)
    assert rounds == (
        ({"a": {"0": 0, "1": 5}}, {"a": {"0": 3, "1": 5}}),
        ({"a": {"0": 4, "1": 5}}, {"a": {"0": 10, "1": 5}}),
    )
