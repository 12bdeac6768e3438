"""Elections by example (tests/scenarios/elections), and under random faults with records to lose.

A scenario is an event per line; below it, indented, the states that follow from it, one for each change.

    partition 1 2 3 min=2 [flush=os]       replicas; all are there and in sync, the first one leads
    die 1 2                                they are gone, all at the same moment
    start 1 3 [unclean]                    they are there again, and are admitted
    leave 2                                it is about to stop
    shrink 3, expand 3                     what a leader does to its ISR
    report 1 4:100                         how far its log goes: last epoch and end offset
    wait                                   the time for members of `last` to come back is over
    prefer                                 the leader that should lead is wanted
    min 1                                  the topic needs so many in sync from now on
    drain 1, undrain 1                     it shall not lead while another one can, or may again
    move 4 2                               the partition shall be held by these, the first of which should lead

`REWRITE=1` writes what happens into the files; read the difference before you keep it. SEEDS=20000 runs more random
worlds; SEED=123 replays one.
"""

import os
from dataclasses import replace
from pathlib import Path
from random import Random

import orjson
import pytest
from tests.unit.cluster.election_world import ElectionWorld

from penstock.cluster.election import Rules, admit, admit_all, next_state
from penstock.cluster.image import End
from penstock.engine.partition_state import NOBODY, PartitionState

SCENARIOS = sorted(Path(__file__).parents[2].joinpath("scenarios", "elections").glob("*.txt"))
SEEDS = int(os.environ.get("SEEDS", "400"))
CHUNKS = 4


class Scene:
    def __init__(self) -> None:
        self.state = PartitionState((), (), NOBODY, 0)
        self.live: list[int] = []
        self.leaving: list[int] = []
        self.drained: list[int] = []
        self.ends: dict[int, End] = {}
        self.min_isr = 1
        self.synced = True
        self.waited = False
        self.preferred = False
        self.starts: dict[int, bool] = {}

    def play(self, event: str) -> list[str]:
        verb, *words = event.split()
        getattr(self, f"_{verb}")(words)
        lines = []
        while True:
            after = admit_all(self.state, self._rules(), self.starts)
            for broker_id in self.starts:
                self.live.append(broker_id)
            is_settled = after is self.state and not self.starts
            self.starts = {}
            if is_settled:
                break
            if after is not self.state:
                lines.append(show(after))
            self.state = after
        self.preferred = False
        return (
            [show(self.state)]
            if verb in ("partition", "shrink", "move")
            else lines or [show(self.state)]
            if verb == "expand"
            else lines
        )

    def _rules(self) -> Rules:
        return Rules(
            self.live,
            self.min_isr,
            self.leaving,
            self.drained,
            synced=self.synced,
            ends=self.ends,
            waited=self.waited,
            preferred=self.preferred,
        )

    def _partition(self, words: list[str]) -> None:
        replicas = tuple(int(word) for word in words if word.isdigit())
        options = dict(word.split("=") for word in words if "=" in word)
        self.min_isr = int(options.get("min", 1))
        self.synced = options.get("flush") != "os"
        self.live = list(replicas)
        self.state = PartitionState(replicas, replicas, replicas[0], 0)

    def _die(self, words: list[str]) -> None:
        for word in words:
            self.live.remove(int(word))
            self.ends.pop(int(word), None)
            if int(word) in self.leaving:
                self.leaving.remove(int(word))

    def _start(self, words: list[str]) -> None:
        self.starts = {int(word): "unclean" not in words for word in words if word.isdigit()}
        self.live = [broker_id for broker_id in self.live if broker_id not in self.starts]

    def _leave(self, words: list[str]) -> None:
        self.leaving += map(int, words)

    def _shrink(self, words: list[str]) -> None:
        kept = [member for member in self.state.isr if str(member) not in words]
        self.state = self.state.with_isr(kept, self.min_isr)

    def _expand(self, words: list[str]) -> None:
        self.state = self.state.with_isr([*self.state.isr, *map(int, words)], self.min_isr)

    def _report(self, words: list[str]) -> None:
        epoch, end = words[1].split(":")
        self.ends[int(words[0])] = End(1, int(epoch), int(end))

    def _wait(self, words: list[str]) -> None:
        self.waited = True

    def _prefer(self, words: list[str]) -> None:
        self.preferred = True

    def _min(self, words: list[str]) -> None:
        self.min_isr = int(words[0])

    def _drain(self, words: list[str]) -> None:
        self.drained += map(int, words)

    def _undrain(self, words: list[str]) -> None:
        self.drained = [broker_id for broker_id in self.drained if str(broker_id) not in words]

    def _move(self, words: list[str]) -> None:
        self.state = self.state.move_to([int(word) for word in words])
        self.live += [broker_id for broker_id in self.state.target if broker_id not in self.state.origin]


def show(state: PartitionState) -> str:
    leads = "nobody" if state.leader == NOBODY else str(state.leader)
    groups = [
        f"{name} {' '.join(map(str, members))}"
        for name, members in (("isr", state.isr), ("elr", state.elr), ("last", state.last))
        if members
    ]
    if state.target:
        groups.append(f"moves to {' '.join(map(str, state.target))}")
    return f"epoch {state.leader_epoch}: {leads} leads; " + ", ".join(groups)


def play(path: Path) -> str:
    """The file as it would be if it expected what happens."""
    scene, lines = Scene(), []
    for line in path.read_text().splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line.startswith("partition"):
            scene = Scene()
        if line and not line.startswith("#"):
            lines += [f"    {result}" for result in scene.play(line)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    happened = play(path)
    if os.environ.get("REWRITE"):
        path.write_text(happened)
    assert path.read_text() == happened


def test_all_scenarios_are_found() -> None:
    assert len(SCENARIOS) >= 5


def test_nothing_to_do_gives_the_same_object() -> None:
    state = PartitionState((1, 2, 3), (1, 3), 1, 7, revision=9)
    assert next_state(state, Rules((1, 3), 2)) is state
    assert admit(state, 2, clean=False, min_isr=2) is state
    assert admit(state, 3, clean=True, min_isr=2) is state
    unled = replace(state, leader=NOBODY)
    assert next_state(unled, Rules((2,), 2)) is unled


def test_a_report_is_not_enough_for_one_that_is_not_there() -> None:
    state = PartitionState((1, 2), (), NOBODY, 3, last=(1, 2))
    ends = {1: End(1, 3, 50), 2: End(1, 3, 10)}
    assert next_state(state, Rules((2,), 1, ends=ends)) is state
    assert next_state(state, Rules((2,), 1, ends=ends, waited=True)).leader == 2
    assert next_state(state, Rules((1, 2), 1, ends=ends)).leader == 1


def test_a_damaged_log_is_reported_and_does_not_lead() -> None:
    state = PartitionState((1, 2), (), NOBODY, 4, last=(1, 2))
    ends = {1: End.damaged(1)}
    assert next_state(state, Rules((1,), 1, ends=ends, waited=True)) is state, "the other one is not forgotten"
    assert next_state(state, Rules((1, 2), 1, ends={**ends, 2: End(1, 3, 50)})).leader == 2
    assert next_state(state, Rules((1, 2), 1, ends={**ends, 2: End(1, -1, 0)})).leader == 2, "empty, and whole"


def test_who_lacks_an_old_part_of_what_is_attached_is_not_elected_for_its_newest_records() -> None:
    state = PartitionState((1, 2), (), NOBODY, 4, last=(1, 2))
    ends = {1: End(1, 3, 102, 2, 10), 2: End(1, 3, 100, 2, 50)}
    assert next_state(state, Rules((1, 2), 1, ends=ends)).leader == 2
    alone = {broker_id: end._replace(attached_epochs=0, attached_ends=0) for broker_id, end in ends.items()}
    assert next_state(state, Rules((1, 2), 1, ends=alone)).leader == 1
    assert set(orjson.loads(alone[1].encode())) == {"incarnation", "last_epoch", "end_offset"}, "as it always was"
    assert [End.decode(end.encode()) for end in (ends[1], alone[1])] == [ends[1], alone[1]]


def test_a_leader_that_has_enough_in_sync_again_forgets_who_started_uncleanly() -> None:
    state = PartitionState((1, 2, 3, 4), (1,), 1, 7, last=(2, 3))
    assert state.with_isr((1, 2), min_isr=2).last == ()
    assert state.with_isr((1, 2), min_isr=3).last == (3,)


def random_world(seed: int) -> ElectionWorld:
    """Every second one has brokers to move to."""
    random = Random(seed)
    brokers = random.choice([2, 3, 3, 3, 4])
    synced = random.random() < 0.6
    wipes = synced and random.random() < 0.6
    spares = random.randint(1, 3) if seed % 2 else 0
    return ElectionWorld(random, brokers, random.randint(1, brokers), synced=synced, wipes=wipes, spares=spares)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_nobody_is_elected_who_lacks_what_was_acknowledged(chunk: int) -> None:
    seeds = [int(os.environ["SEED"])] if "SEED" in os.environ else range(chunk, SEEDS, CHUNKS)
    committed = elected_of_last = moves = 0
    for seed in seeds:
        world = random_world(seed)
        try:
            for _ in range(250):
                world.step()
            world.heal()
            # With flush=os an operator decides when everybody has started uncleanly.
            assert world.state.leader != NOBODY or (not world.synced and world.state.last), "nobody leads in the end"
            if world.state.leader != NOBODY:
                assert world.state.isr == world.state.replicas, "not all are in sync in the end"
                assert not world.state.target, "a move has not arrived"
                for broker in [world.brokers[broker_id] for broker_id in world.state.replicas]:
                    assert broker.log[: len(world.committed)] == world.committed
        except AssertionError as error:
            raise AssertionError(f"SEED={seed}: {error}; {world.state}") from error
        committed += len(world.committed)
        elected_of_last += world.elections["last"]
        moves += world.moves
    if len(seeds) > 50:
        assert committed > 5 * len(seeds), "hardly anything was acknowledged"
        assert moves > len(seeds) or not chunk % 2, "hardly anything has moved"
        assert elected_of_last > 0.1 * len(seeds)
