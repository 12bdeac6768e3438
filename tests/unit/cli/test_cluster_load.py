"""`penstock cluster balance --by cpu`: what brokers tell of their work, and what is made of it."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from penstock.cli.cluster_load import LOAD, Work, measure, with_load
from penstock.cli.cluster_plan import make_layout
from penstock.cli.cluster_view import Place
from penstock.cli.failure import CommandError
from penstock.cli.main import main

from .cluster_pictures import Staged, broker, partition, picture, staged

__all__ = ["staged"]

HERE = picture([broker(1), broker(2)], partition("t", 0, [1, 2]), partition("t", 1, [1, 2]))


class Telling:
    """A view of brokers that tell one answer after the other."""

    def __init__(self, told: Mapping[int, list[dict[str, Any] | None]]) -> None:
        self._told = {9000 + broker_id: list(answers) for broker_id, answers in told.items()}
        self.cluster = self

    def ask(self, address: tuple[str, int], api: str, **fields: Any) -> Any:
        assert api == "describe_configs" and fields["resources"][0]["configuration_keys"] == [LOAD]
        answer = self._told[address[1]].pop(0)
        configs = [] if answer is None else [SimpleNamespace(value=orjson.dumps(answer).decode())]
        return SimpleNamespace(results=[SimpleNamespace(error_code=0, error_message=None, configs=configs)])


def told(cpu_s: float, **steps: int) -> dict[str, Any]:
    return {"cpu_s": cpu_s, "steps": [["t", int(name[1:]), count] for name, count in steps.items()]}


def measured(*answers: list[dict[str, Any] | None]) -> dict[int, Work]:
    view: Any = Telling(dict(enumerate(answers, start=1)))
    return measure(view, HERE, 5, wait=lambda _: None)


def shares(work: Work) -> dict[Place, float]:
    return {place: share / work.cpu for place, share in work.shares.items()}


def test_cpu_is_shared_out_by_what_was_done_in_between() -> None:
    work = measured([told(10, p0=100), told(12, p0=130, p1=10)], [told(5, p0=7), told(5, p0=7)])
    assert shares(work[1]) == pytest.approx({("t", 0): 0.75, ("t", 1): 0.25})
    assert work[2].cpu == 0 and not work[2].shares


def test_a_broker_that_started_anew_cannot_be_measured() -> None:
    for after in (told(1, p0=200), told(11, p0=99)):
        with pytest.raises(CommandError, match="broker 1 was started anew"):
            measured([told(10, p0=100), after], [told(1), told(1)])


def test_a_broker_of_an_older_version_does_not_tell() -> None:
    with pytest.raises(CommandError, match="broker 2 does not tell"):
        measured([told(1)], [None])


def test_leading_costs_what_it_takes_beyond_following() -> None:
    work = {1: Work(0.8, {("t", 0): 0.5, ("t", 1): 0.1}), 2: Work(0.3, {("t", 0): 0.2, ("t", 1): 0.2})}
    layout = with_load(make_layout(HERE), HERE, work)
    assert layout.partitions["t", 0].lead_cpu == pytest.approx(0.3)
    assert layout.partitions["t", 1].lead_cpu == 0
    assert {each: one.cpu for each, one in layout.brokers.items()} == {1: 0.8, 2: 0.3}


def test_what_another_leads_than_should_is_left_alone() -> None:
    moved = picture([broker(1), broker(2)], partition("t", 0, [1, 2], leader=2))
    layout = with_load(make_layout(moved), moved, {1: Work(1.0, {("t", 0): 1.0}), 2: Work(0.0, {})})
    assert layout.partitions["t", 0].lead_cpu == 0


def test_the_busier_broker_leads_less(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    even = picture([broker(1), broker(2)], partition("t", 0, [2, 1]), partition("t", 1, [1, 2]))
    stage = staged(HERE, even)
    work = {1: Work(0.9, {("t", 0): 0.4, ("t", 1): 0.4}), 2: Work(0.1, {})}
    monkeypatch.setattr("penstock.cli.cluster_moves.measure_load", lambda *_: work)
    assert main(["cluster", "balance", "--by", "cpu", "--yes"]) == 0
    assert stage.deeds == [("move", {("t", 0): (2, 1)}), ("elect", [("t", 0)])]
    shown = capsys.readouterr()
    assert "90% → 50%" in shown.out and "10% → 50%" in shown.out
    assert "measuring for 10 s" in shown.err
