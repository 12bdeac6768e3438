"""The assignor of share groups by its properties: everybody takes from something, evenly, and little moves."""

from time import perf_counter
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.engine.coordination.schemas import TopicPartitions
from penstock.engine.groups.assignors import Assignment, Subscriber
from penstock.engine.groups.share_assignor import assign_simple

TOPICS = [UUID(int=number) for number in (7, 3, 11, 5)]
SEVEN, THREE, ELEVEN = TOPICS[:3]
BOTH = frozenset({SEVEN, THREE})
Place = tuple[UUID, int]
Wanted = dict[str, frozenset[UUID]]
partition_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7), max_size=4)
subscriptions = st.frozensets(st.sampled_from(TOPICS))
member_ids = st.sampled_from("abcdefghij")
members = st.dictionaries(member_ids, subscriptions)


def subscribers(wanted: Wanted, before: dict[str, Assignment] | None = None) -> list[Subscriber]:
    return [Subscriber(name, None, topics, (before or {}).get(name, ())) for name, topics in wanted.items()]


def places(assignment: Assignment) -> set[Place]:
    return {(topic_id, number) for topic_id, numbers in assignment for number in numbers}


def takers(assigned: dict[str, Assignment]) -> dict[Place, int]:
    found: dict[Place, int] = {}
    for assignment in assigned.values():
        for place in places(assignment):
            found[place] = found.get(place, 0) + 1
    return found


def there_are(partitions: dict[UUID, int]) -> set[Place]:
    return {(topic, number) for topic, count in partitions.items() for number in range(count)}


@given(before_wanted=members, wanted=members, before=partition_counts, after=partition_counts)
def test_every_partition_somebody_wants_has_takers_who_want_it(before_wanted, wanted, before, after) -> None:
    first = assign_simple(subscribers(before_wanted), before)
    assigned = assign_simple(subscribers(wanted, first), after)
    some_want = {topic for topics in wanted.values() for topic in topics}
    assert takers(assigned).keys() == {place for place in there_are(after) if place[0] in some_want}
    assert assigned.keys() == wanted.keys()
    for member, assignment in assigned.items():
        assert {topic for topic, _ in assignment} <= wanted[member]
        assert list(assignment) == sorted(assignment, key=lambda topic: topic.topic_id.int)
        assert all(topic.partitions and list(topic.partitions) == sorted(topic.partitions) for topic in assignment)
        assert bool(assignment) == bool(wanted[member] & after.keys()), "nobody who wants something is idle"


@given(before_wanted=members, wanted=members, before=partition_counts, after=partition_counts)
def test_topics_with_the_same_readers_are_shared_evenly(before_wanted, wanted, before, after) -> None:
    first = assign_simple(subscribers(before_wanted), before)
    assigned = assign_simple(subscribers(wanted, first), after)
    counts = takers(assigned)
    by_readers: dict[frozenset[str], set[Place]] = {}
    for topic, number in there_are(after):
        readers = frozenset(name for name, topics in wanted.items() if topic in topics)
        by_readers.setdefault(readers, set()).add((topic, number))
    for readers, alike in by_readers.items():
        if readers:
            assert {counts[place] for place in alike} == {-(-len(readers) // len(alike))}
            loads = [len(places(assigned[name]) & alike) for name in readers]
            assert max(loads) - min(loads) <= 1


@given(wanted=members, partitions=partition_counts, data=st.data())
def test_the_order_of_members_does_not_matter(wanted, partitions, data) -> None:
    shuffled = data.draw(st.permutations(subscribers(wanted)))
    assert assign_simple(shuffled, partitions) == assign_simple(subscribers(wanted), partitions)


@given(before_wanted=members, wanted=members, before=partition_counts, after=partition_counts)
@example(  # a partition lacks somebody, and who is to have one more has it
    before_wanted={"a": frozenset({THREE}), "b": frozenset({THREE}), "c": frozenset({ELEVEN, THREE}), "d": BOTH},
    wanted={"a": frozenset({THREE}), "c": frozenset({ELEVEN, THREE}), "d": BOTH},
    before={SEVEN: 4, THREE: 2, ELEVEN: 3},
    after={SEVEN: 4, THREE: 2, ELEVEN: 3},
)
def test_a_target_that_is_right_stays(before_wanted, wanted, before, after) -> None:
    first = assign_simple(subscribers(before_wanted), before)
    assigned = assign_simple(subscribers(wanted, first), after)
    assert assign_simple(subscribers(wanted, assigned), after) == assigned


@given(earlier=st.sets(member_ids, min_size=1), now=st.sets(member_ids, min_size=1), partitions=partition_counts)
def test_as_little_moves_as_balance_allows(earlier, now, partitions) -> None:
    """With no more members than partitions each of those has one taker, so what may stay can be counted."""
    everything, there = frozenset(TOPICS), there_are(partitions)
    first = assign_simple(subscribers(dict.fromkeys(earlier, everything)), partitions)
    second = assign_simple(subscribers(dict.fromkeys(now, everything), first), partitions)
    kept = sum(len(places(first[name]) & places(second[name])) for name in earlier & now)
    had = [len(places(first[name])) for name in sorted(earlier & now)]
    if max(len(earlier), len(now)) > len(there):
        return
    each, extra = divmod(len(there), len(now))
    assert kept == sum(min(count, each) for count in had) + min(extra, sum(count > each for count in had))


@given(count=st.integers(1, 5), partitions=st.integers(1, 5), leaves=st.integers(0, 4))
def test_who_stays_keeps_most_of_it_when_partitions_are_shared(count, partitions, leaves) -> None:
    """One place of each member that leaves, or of one partition, is all that has to be filled again."""
    names = [f"m{number}" for number in range(count * partitions)]
    wanted = dict.fromkeys(names, frozenset(TOPICS[:1]))
    first = assign_simple(subscribers(wanted), {TOPICS[0]: partitions})
    assert all(len(places(assignment)) == 1 for assignment in first.values())
    gone = names[leaves % len(names)]
    del wanted[gone]
    if not wanted:
        return
    second = assign_simple(subscribers(wanted, first), {TOPICS[0]: partitions})
    assert all(places(first[name]) & places(second[name]) for name in wanted)


def test_what_two_were_to_have_is_left_to_both_only_where_partitions_are_shared() -> None:
    topic = TOPICS[0]
    both = [Subscriber(name, None, frozenset({topic}), (TopicPartitions(topic, (0, 1)),)) for name in "ab"]
    assert assign_simple(both, {topic: 2}) == {
        "a": (TopicPartitions(topic, (0,)),),
        "b": (TopicPartitions(topic, (1,)),),
    }
    assert assign_simple(both, {topic: 1}) == dict.fromkeys("ab", (TopicPartitions(topic, (0,)),))


def test_whoever_has_less_of_other_topics_is_the_first_to_have_more() -> None:
    """a alone reads 3, so of the odd number of partitions of 5 the larger half is b's."""
    wanted = {"a": frozenset(TOPICS[1:4:2]), "b": frozenset(TOPICS[3:])}
    assigned = assign_simple(subscribers(wanted), {TOPICS[1]: 1, TOPICS[3]: 3})
    assert {name: len(places(assignment)) for name, assignment in assigned.items()} == {"a": 2, "b": 2}


@pytest.mark.parametrize("kinds", [1, 2, 7])
@pytest.mark.parametrize(("count", "partitions"), [(200, 10_000), (200, 3)])
def test_a_large_group_is_divided_in_no_time(kinds: int, count: int, partitions: int) -> None:
    """Some 0.1 s with ten thousand partitions; the limit only tells that from a slow algorithm."""
    topics = [UUID(int=number) for number in range(max(1, partitions // 10))]
    wanted = {f"m{number}": frozenset(topics[number % kinds :: kinds] + topics[:10]) for number in range(count)}
    there = dict.fromkeys(topics, min(10, partitions))
    first = assign_simple(subscribers(wanted), there)
    started = perf_counter()
    del wanted["m100"]
    assign_simple(subscribers(wanted, first), there)
    assert perf_counter() - started < 2
