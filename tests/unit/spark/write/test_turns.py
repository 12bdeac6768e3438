"""Turns of tasks that share a producer id: numbers without gap or overlap, one writer of a partition at a time."""

import random

import pytest

from penstock.spark.write.turns import Claim, Counts, Turns

A, B, C = ("orders", 0), ("orders", 1), ("bills", 0)


def want(counts: Counts, task: int = 0, attempt: int = 0) -> Claim:
    return Claim(task, attempt, counts)


def test_the_first_claim_is_due_at_once_and_begins_at_zero() -> None:
    turns = Turns()
    turns.claim("one", want({A: 5, B: 2}))
    assert turns.is_due("one")
    assert turns.first_sequences("one") == {A: 0, B: 0}


def test_a_claim_waits_for_those_before_it_on_its_partitions() -> None:
    turns = Turns()
    turns.claim("one", want({A: 5}))
    turns.claim("two", want({A: 3, B: 1}))
    assert not turns.is_due("two")
    turns.finish("one")
    assert turns.is_due("two")
    assert turns.first_sequences("two") == {A: 5, B: 0}


def test_a_claim_does_not_wait_for_other_partitions() -> None:
    turns = Turns()
    turns.claim("one", want({A: 5}))
    turns.claim("two", want({B: 3}))
    assert turns.is_due("two")


def test_a_claim_nobody_wrote_down_is_not_due() -> None:
    assert not Turns().is_due("one")


def test_a_claim_written_twice_counts_once() -> None:
    turns = Turns()
    for name, counts in (("one", {A: 5}), ("two", {A: 1}), ("one", {A: 5}), ("three", {A: 1})):
        turns.claim(name, want(counts))
    assert turns.first_sequences("two") == {A: 5}
    assert turns.first_sequences("three") == {A: 6}


def test_what_comes_behind_the_seal_has_no_turn() -> None:
    turns = Turns()
    turns.claim("one", want({A: 5}))
    turns.seal()
    turns.claim("late", want({A: 1}))
    assert turns.sealed
    assert set(turns.claims) == {"one"}
    assert not turns.is_due("late")


def test_two_attempts_of_one_task_are_rivals() -> None:
    turns = Turns()
    turns.claim("one", want({A: 5}, task=3, attempt=0))
    assert not turns.has_rival(3, 0)
    assert turns.has_rival(3, 1)
    assert not turns.has_rival(2, 1)


@pytest.mark.parametrize("seed", range(50))
def test_every_reader_of_the_log_comes_to_the_same_turns(seed: int) -> None:
    """Tasks read the log up to different places; their numbers are together 0 to n, each once, one writer at a time."""
    rng = random.Random(seed)
    log: list[tuple[str, str]] = []
    counts = {
        f"task{i}": {place: rng.randint(1, 9) for place in rng.sample([A, B, C], rng.randint(1, 3))} for i in range(6)
    }
    unclaimed, waiting = list(counts), dict.fromkeys(counts, 0)
    views = {name: Turns() for name in counts}
    writing: set[str] = set()
    written: dict[tuple[str, int], list[int]] = {A: [], B: [], C: []}
    while len({name for kind, name in log if kind == "done"}) < len(counts):
        if unclaimed and rng.random() < 0.3:
            name = unclaimed.pop(rng.randrange(len(unclaimed)))
            log += [("claim", name)] * rng.choice([1, 1, 2])
        name = rng.choice(list(counts))
        view, position = views[name], waiting[name]
        if name in writing:
            writing.remove(name)
            log.append(("done", name))
        elif name not in view.done:
            for kind, about in log[position : position + rng.randint(0, 4)]:
                view.claim(about, want(counts[about])) if kind == "claim" else view.finish(about)
                waiting[name] += 1
            if view.is_due(name) and ("done", name) not in log:
                for other in writing:
                    assert counts[other].keys().isdisjoint(counts[name])
                writing.add(name)
                for place, first in view.first_sequences(name).items():
                    written[place] += range(first, first + counts[name][place])
    for place, numbers in written.items():
        assert numbers == list(range(sum(each.get(place, 0) for each in counts.values())))
