"""Pictures of clusters for tests, and a view that shows them and notes what is asked of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.cli.cluster_view import Broker, Partition, Picture, Place, View

ADDRESS = "127.0.0.1:9"


def broker(broker_id: int, **values: Any) -> Broker:
    known = {"host": "b", "port": 9000 + broker_id, "rack": f"r{broker_id}", "is_up": True, "answers": True}
    return Broker(broker_id, **{**known, "disk_bytes": 1000, "free_bytes": 500, **values})


def partition(topic: str, index: int, replicas: Sequence[int], **values: Any) -> Partition:
    known = {"leader": replicas[0], "epoch": 1, "isr": tuple(replicas), "min_isr": 2}
    return Partition(topic, index, replicas=tuple(replicas), **{**known, **values})


def picture(brokers: Sequence[Broker], *partitions: Partition, sizes: Mapping[Place, int] | None = None) -> Picture:
    """`sizes` are what each replica has that does not say otherwise."""
    known = dict(sizes or {})
    filled = {
        each.id: each
        if each.sizes
        else replace(each, sizes={one.place: known.get(one.place, 0) for one in partitions if each.id in one.replicas})
        for each in brokers
    }
    return Picture("c", 1, filled, tuple(partitions))


class Stage:
    """One picture after the other, the last one for ever; `deeds` is what was asked of the cluster."""

    def __init__(self, pictures: Sequence[Picture]) -> None:
        self.pictures = list(pictures)
        self.deeds: list[tuple[Any, ...]] = []
        self.settings: dict[int | None, dict[str, str]] = {}
        self.refused: dict[Place, str] = {}
        self.unelected: dict[Place, str] = {}
        self.store_answers = True

    def fetch(self, **_: Any) -> Picture:
        return self.pictures.pop(0) if len(self.pictures) > 1 else self.pictures[0]


Staged = Callable[..., Stage]


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Staged:
    """Has commands see pictures instead of a server."""
    monkeypatch.setenv("PENSTOCK_SERVER", ADDRESS)
    monkeypatch.setattr("penstock.cli.cluster_patience.POLL_S", 0.0)
    monkeypatch.setattr("penstock.cli.cluster_brokers.POLL_S", 0.0)
    monkeypatch.setattr("penstock.cli.cluster_execution.POLL_S", 0.0)
    monkeypatch.setattr("penstock.cli.cluster_restart.POLL_S", 0.0)
    monkeypatch.setattr("penstock.cli.cluster_status.POLL_S", 0.0)
    monkeypatch.setattr("penstock.cli.cluster_restart._LOOK_EVERY_S", 60.0)

    def stage(*pictures: Picture) -> Stage:
        made = Stage(pictures)

        def note(name: str, answer: Any = None) -> Callable[..., Any]:
            def noted(_view: View, *args: Any, **kwargs: Any) -> Any:
                made.deeds.append((name, *args, *([kwargs] if kwargs else [])))
                return answer() if callable(answer) else answer

            return noted

        monkeypatch.setattr(View, "fetch", lambda _, **values: made.fetch(**values))
        monkeypatch.setattr(View, "does_store_answer", lambda _: made.store_answers)
        monkeypatch.setattr(View, "ask_config", lambda _, each: made.settings.get(each, {}))
        monkeypatch.setattr(
            "penstock.cli.cluster_execution.start_moves",
            lambda _, moves: made.deeds.append(("move", {move.place: move.new for move in moves})) or made.refused,
        )
        for module in ("cluster_execution", "cluster_brokers"):
            monkeypatch.setattr(f"penstock.cli.{module}.alter_config", note("set"))
        monkeypatch.setattr("penstock.cli.cluster_brokers.unregister", note("forget"))
        monkeypatch.setattr("penstock.cli.cluster_moves.cancel_moves", note("cancel", dict))
        for name in ("cluster_moves.ask_elect", "cluster_brokers.elect", "cluster_restart.elect"):
            monkeypatch.setattr(f"penstock.cli.{name}", note("elect", lambda: ([], made.unelected)))
        monkeypatch.setattr("penstock.cli.watch.Server.admin", lambda _: object())
        return made

    return stage
