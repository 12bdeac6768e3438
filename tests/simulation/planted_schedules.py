"""Bugs planted in schedules; see `planted.py`."""

from collections.abc import Sequence
from typing import Any

from penstock.engine.coordination.outcome import Outcome
from penstock.engine.coordination.schemas import Entry
from penstock.engine.forwarding import Forwarding
from penstock.engine.queues.schedules.entries import Round
from penstock.engine.queues.schedules.firing import _Runner
from penstock.engine.queues.schedules.machine import ScheduleMachine
from penstock.engine.queues.schedules.schedule import Progress
from tests.simulation.planted import Planted, _both, _instead
from tests.simulation.planted_queues import _publish_nothing, _publish_without_number

_replay, _done = ScheduleMachine.replay, ScheduleMachine.done


def _replay_nothing_under_way(self: ScheduleMachine, entry: Entry, *more: Any) -> None:
    if not (isinstance(entry.value, Round) and entry.value.fires):
        _replay(self, entry, *more)


def _replay_from_the_beginning(self: ScheduleMachine, entry: Entry, *more: Any) -> None:
    if isinstance(entry.value, Progress) and not entry.value.is_paused:
        base_ms = entry.value.base_ms - 3000
        entry = entry._replace(value=entry.value._replace(base_ms=base_ms))
    _replay(self, entry, *more)


async def _at_once(self: _Runner) -> None:
    return None


async def _note_at_once(self: _Runner, machine: ScheduleMachine, partition: int, numbers: Sequence[int]) -> None:
    producer_id = machine.round(partition).producer_id
    if producer_id < 0:
        producer_id = await self._firing.producer_ids.take()
    self._shard.step(lambda machine, now: Outcome(machine.note(None, partition, producer_id, numbers).records))


def _done_without_the_time(self: ScheduleMachine, now_ms: int, to: Any, partition: int, noted: Round) -> Any:
    outcome = _done(self, now_ms, to, partition, noted)
    return type(outcome)([each for each in outcome.records if not isinstance(each.value, Progress)], outcome.replies)


PLANTED_SCHEDULES: dict[str, Planted] = {
    "fires_without_a_number": Planted(
        "a scheduled message is published without a number by which it is known again",
        _instead(Forwarding, "publish_again", _publish_without_number),
    ),
    "fires_told_unpublished": Planted(
        "a schedule goes on although its message was not published",
        _instead(Forwarding, "publish_again", _publish_nothing),
    ),
    "round_begun_anew": Planted(
        "whoever leads next does not read what was under way",
        _instead(ScheduleMachine, "replay", _replay_nothing_under_way),
    ),
    "fires_before_the_note": Planted(
        "a message is published before it is safe that it would be",
        _both(_instead(_Runner, "_until_safe", _at_once), _instead(_Runner, "_note_round", _note_at_once)),
    ),
    "fired_times_forgotten": Planted(
        "whoever leads next plans times again that have passed",
        _instead(ScheduleMachine, "replay", _replay_from_the_beginning),
    ),
    "fired_times_not_kept": Planted(
        "it is not kept which time a schedule fired for", _instead(ScheduleMachine, "done", _done_without_the_time)
    ),
}
