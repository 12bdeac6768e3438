"""Assignors by their properties: all is read once, by those who want it, fairly, and moves as little as it can."""

from time import perf_counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.coordination.schemas import TopicPartitions
from penstock.engine.groups.assignors import ASSIGNORS, Assignment, Subscriber, assign_range, assign_uniform, even_out

TOPICS = [UUID(int=number) for number in (7, 3, 11, 5)]
partition_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), max_size=4)
subscriptions = st.frozensets(st.sampled_from(TOPICS))
member_ids = st.sampled_from("abcdef")


def subscribers(wanted: dict[str, frozenset[UUID]], before: dict[str, Assignment] | None = None) -> list[Subscriber]:
    return [Subscriber(name, None, topics, (before or {}).get(name, ())) for name, topics in wanted.items()]


def places(assignment: Assignment) -> set[tuple[UUID, int]]:
    return {(topic_id, number) for topic_id, numbers in assignment for number in numbers}


def loads(assigned: dict[str, Assignment]) -> dict[str, int]:
    return {name: len(places(assignment)) for name, assignment in assigned.items()}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(wanted=st.dictionaries(member_ids, subscriptions), before=partition_counts, after=partition_counts)
def test_every_partition_somebody_wants_goes_to_one_who_wants_it(name, wanted, before, after) -> None:
    first = ASSIGNORS[name](subscribers(wanted), before)
    for assigned, partitions in (
        (first, before),
        (ASSIGNORS[name](subscribers(wanted, first), after), after),
    ):
        given_out = [place for assignment in assigned.values() for place in places(assignment)]
        some_want = {topic for topics in wanted.values() for topic in topics}
        assert sorted(given_out) == sorted(
            (topic, number) for topic in some_want & partitions.keys() for number in range(partitions[topic])
        )
        assert assigned.keys() == wanted.keys()
        for member, assignment in assigned.items():
            assert {topic for topic, _ in assignment} <= wanted[member]
            assert list(assignment) == sorted(assignment, key=lambda topic: topic.topic_id.int)
            assert all(topic.partitions and list(topic.partitions) == sorted(topic.partitions) for topic in assignment)


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(wanted=st.dictionaries(member_ids, subscriptions), partitions=partition_counts, data=st.data())
def test_the_order_of_members_does_not_matter(name, wanted, partitions, data) -> None:
    shuffled = data.draw(st.permutations(subscribers(wanted)))
    assert ASSIGNORS[name](shuffled, partitions) == ASSIGNORS[name](subscribers(wanted), partitions)


@given(
    earlier=st.sets(member_ids),
    now=st.sets(member_ids, min_size=1),
    before=partition_counts,
    after=partition_counts,
)
def test_uniform_is_even_and_moves_as_little_as_that_allows(earlier, now, before, after) -> None:
    everything = frozenset(TOPICS)
    first = assign_uniform(subscribers(dict.fromkeys(earlier, everything)), before)
    second = assign_uniform(subscribers(dict.fromkeys(now, everything), first), after)
    assert max(loads(second).values()) - min(loads(second).values()) <= 1

    there = {(topic, number) for topic, count in after.items() for number in range(count)}
    had = {name: places(first.get(name, ())) & there for name in now}
    kept = sum(len(had[name] & places(second[name])) for name in now)
    each, extra = divmod(len(there), len(now))
    with_one_more = sum(1 for name in now if len(had[name]) > each)
    assert kept == sum(min(len(had[name]), each) for name in now) + min(extra, with_one_more)


@given(earlier=st.sets(member_ids, min_size=1), newcomers=st.sets(member_ids), partitions=partition_counts)
def test_members_that_join_are_given_as_much_as_if_all_was_divided_anew(earlier, newcomers, partitions) -> None:
    everything = frozenset(TOPICS)
    first = assign_uniform(subscribers(dict.fromkeys(earlier, everything)), partitions)
    members = subscribers(dict.fromkeys(earlier | newcomers, everything), first)
    evened, anew = even_out(members), assign_uniform(members, partitions)
    assert sorted(loads(evened).values()) == sorted(loads(anew).values())
    assert sum(loads(evened)[name] for name in earlier) == sum(loads(anew)[name] for name in earlier), "as few moves"
    for name in earlier:
        assert places(evened[name]) <= places(first[name])
    given_out = [place for assignment in evened.values() for place in places(assignment)]
    assert sorted(given_out) == sorted((topic, n) for topic, count in partitions.items() for n in range(count))
    for assignment in evened.values():
        assert list(assignment) == sorted(assignment, key=lambda topic: topic.topic_id.int)
        assert all(topic.partitions and list(topic.partitions) == sorted(topic.partitions) for topic in assignment)


@given(wanted=st.dictionaries(member_ids, subscriptions), before=partition_counts, after=partition_counts)
def test_uniform_cannot_be_evened_out_by_one_more_move(wanted, before, after) -> None:
    first = assign_uniform(subscribers(wanted), before)
    second = assign_uniform(subscribers(wanted, first), after)
    load = loads(second)
    for owner, assignment in second.items():
        for topic_id, _ in assignment:
            assert all(load[owner] - load[other] <= 1 for other in wanted if topic_id in wanted[other])


@given(wanted=st.dictionaries(member_ids, subscriptions), partitions=partition_counts)
def test_uniform_leaves_a_target_that_is_right_alone(wanted, partitions) -> None:
    first = assign_uniform(subscribers(wanted), partitions)
    assert assign_uniform(subscribers(wanted, first), partitions) == first


def test_uniform_does_not_give_a_partition_twice_that_two_were_to_have() -> None:
    topic = TOPICS[0]
    both = [Subscriber(name, None, frozenset({topic}), (TopicPartitions(topic, (0, 1)),)) for name in "ab"]
    assert assign_uniform(both, {topic: 2}) == {
        "a": (TopicPartitions(topic, (0,)),),
        "b": (TopicPartitions(topic, (1,)),),
    }


@given(names=st.sets(member_ids, min_size=1), topics=st.sets(st.sampled_from(TOPICS)), count=st.integers(1, 9))
def test_range_puts_the_same_numbers_of_all_topics_together(names, topics, count) -> None:
    assigned = assign_range(subscribers(dict.fromkeys(names, frozenset(topics))), dict.fromkeys(topics, count))
    for assignment in assigned.values():
        assert len({numbers for _, numbers in assignment}) <= 1
        for _, numbers in assignment:
            assert numbers == tuple(range(numbers[0], numbers[-1] + 1))
    if topics:
        load = loads(assigned).values()
        assert max(load) - min(load) <= len(topics)


def test_range_counts_static_members_first_by_instance() -> None:
    topic = TOPICS[0]
    members = [
        Subscriber("a", None, frozenset({topic}), ()),
        Subscriber("b", "second", frozenset({topic}), ()),
        Subscriber("c", "first", frozenset({topic}), ()),
    ]
    assigned = assign_range(members, {topic: 4})
    assert {name: assignment[0].partitions for name, assignment in assigned.items()} == {
        "c": (0, 1),
        "b": (2,),
        "a": (3,),
    }


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@pytest.mark.parametrize("kinds", [1, 2, 7])
def test_a_large_group_is_divided_in_no_time(name, kinds) -> None:
    """A thousand members, ten thousand partitions: some 0.03 s; the limit only tells that from a slow algorithm."""
    topics = [UUID(int=number) for number in range(1000)]
    wanted = {f"m{i}": frozenset(topics[i % kinds :: kinds] + topics[:100]) for i in range(1000)}
    partitions = dict.fromkeys(topics, 10)
    first = ASSIGNORS[name](subscribers(wanted), partitions)
    started = perf_counter()
    del wanted["m500"]
    ASSIGNORS[name](subscribers(wanted, first), partitions)
    assert perf_counter() - started < 2
