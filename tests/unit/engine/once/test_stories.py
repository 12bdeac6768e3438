"""Duplicates by example: each file in tests/scenarios/once is a story, and must be told exactly like that.

A line is something that happens; indented lines are what comes of it: the offset that a publisher is told, and what of
its batch is appended. `-` is a message without an id.

    window TIME|none                   the setting of the queue      +5s
    send ID …                          one batch                     moved ID …   one that brokers move
    anna: send ID …                    who numbers what she sends    anna: again  the same once more, as a retry
    full | room                        the disk                      restart | kill
    show                               all that is there: offset=id
"""

import asyncio
from pathlib import Path

import pytest
from tests.message_ids import QUEUE, identified, publish, with_window
from tests.simulated_broker import Broker, read_all
from tests.unit.engine.test_engine import Machine

from penstock.quantities import parse_duration_ms
from penstock.records.record import iterate_batch
from penstock.testing.virtual_clock import run_virtual

SCENARIOS = Path(__file__).parents[3] / "scenarios" / "once"
_NO_ID = "-"


class Story:
    def __init__(self) -> None:
        self._machine = Machine()
        self._broker: Broker | None = None
        self._window = "none"
        self._sequences: dict[str, int] = {}
        self._last: dict[str, bytearray] = {}

    async def tell(self, line: str) -> list[str]:
        words = line.split()
        who = words.pop(0)[:-1] if words[0].endswith(":") else ""
        verb, *ids = words
        broker = await self._running()
        match verb:
            case "window":
                await with_window(broker, ids[0])
            case "send" | "moved":
                return await self._send(self._batch(who, ids), by_broker=verb == "moved")
            case "again":
                return await self._send(self._last[who], by_broker=False)
            case "full" | "room":
                self._machine.disk.capacity_bytes = 0 if verb == "full" else None
            case "restart":
                await broker.stop()
                self._broker = None
            case "kill":
                self._machine.disk.cut_power()
                self._machine.disk, self._broker = self._machine.disk.after_power_cut(), None
            case "show":
                return [", ".join(await self._there()) or "nothing"]
            case _:
                await asyncio.sleep(parse_duration_ms(verb.removeprefix("+")) / 1000)
        return []

    async def _running(self) -> Broker:
        if self._broker is None:
            self._broker = self._machine.broker()
            await self._broker.start()
        return self._broker

    def _batch(self, who: str, ids: list[str]) -> bytearray:
        messages = [(None if each == _NO_ID else each, each.encode()) for each in ids]
        if not who:
            return identified(*messages)
        sequence = self._sequences.get(who, 0)
        self._sequences[who] = sequence + len(ids)
        number = sum(who.encode())
        batch = identified(*messages, producer_id=number, producer_epoch=0, base_sequence=sequence)
        self._last[who] = batch
        return batch

    async def _send(self, batch: bytearray, *, by_broker: bool) -> list[str]:
        assert self._broker is not None
        before = await self._there()
        outcome = await publish(self._broker.partition(QUEUE), self._broker, batch, by_broker=by_broker)
        if outcome.error is not None:
            return [f"refused: {outcome.error.code.name}"]
        assert outcome.appended is not None
        new = (await self._there())[len(before) :]
        return [f"told {outcome.appended.base_offset}", f"appended {', '.join(new) or 'nothing'}"]

    async def _there(self) -> list[str]:
        assert self._broker is not None
        batches = await read_all(self._broker.partition(QUEUE))
        return [
            f"{offset}={(record.value or b'').decode()}"
            for each in batches
            if not each.header.is_control
            for offset, _, record in iterate_batch(each.data, 1 << 20)
        ]


async def retell(text: str) -> str:
    """The scenario with what really comes of each line."""
    story, lines = Story(), []
    for line in text.splitlines():
        if line.startswith(" "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += ["    " + outcome for outcome in await story.tell(line)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_the_story_goes_as_written(path: Path) -> None:
    text = path.read_text()
    assert run_virtual(lambda: retell(text), 7) == text
