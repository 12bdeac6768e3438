"""Pipelines to draw."""

from typing import Any

from penstock.pipelines.home.status import SinkStatus, SourceStatus, State, Status, StepStatus
from penstock.pipelines.model import Action, DeadLetters, Expectation, SinkSpec, Source, Spec, Step


def topic(name: str, **options: object) -> Source:
    return Source(name, "topic", {"topic": [name], **options})


def sql(name: str, *inputs: str, **more: Any) -> Step:
    return Step(name, inputs, sql="SELECT 1", **more)


def delta(name: str, source: str) -> SinkSpec:
    return SinkSpec(name, "delta", source, {"delta": f"./{name}"})


def make_spec(
    sources: tuple[Source, ...],
    steps: tuple[Step, ...],
    sinks: tuple[SinkSpec, ...],
    letters: str = "topic",
    *,
    name: str = "p",
    description: str = "",
) -> Spec:
    target = f"{name}.dead" if letters == "topic" else ""
    return Spec(name, sources, steps, sinks, DeadLetters(letters, target), "127.0.0.1:9092", description=description)


QUARANTINE = Expectation("positive", "amount > 0", Action.QUARANTINE)
REVENUE = make_spec(
    (
        topic("orders", format="json"),
        Source("customers", "files", {"files": ["customers.csv"], "format": "csv", "static": True}),
    ),
    (sql("clean", "orders", expect=(QUARANTINE,)), Step("hourly", ("clean", "customers"), python="revenue.py:hourly")),
    (SinkSpec("raw", "topic", "clean", {"topic": "orders.clean"}), delta("lake", "hourly")),
    name="revenue",
    description="Revenue by hour",
)
CROSSED = make_spec(
    (topic("a"), topic("b")), (sql("c", "a", "b"), sql("d", "a", "b")), (delta("e", "c"), delta("f", "d")), "drop"
)
"""Both steps read both sources."""


def make_status(state: State = State.RUNNING, **more: object) -> Status:
    """Of `REVENUE`."""
    facts = {
        "batch": 42,
        "batches": 43,
        "batch_s": 0.82,
        "rows": 123_456,
        "rows_per_s": 1500.0,
        "lag": 30,
        "dead_letters": 3,
        "sources": {"orders": SourceStatus(123_456, 1500.0, 30)},
        "steps": {"orders": StepStatus(0, {"": 1}), "clean": StepStatus(123_000, {"positive": 2})},
        "sinks": {
            "raw": SinkStatus("topic", 9, 0.5, 1, "no broker answers at h:1"),
            "lake": SinkStatus("delta", 24, 0.1),
        },
    }
    return Status("revenue", state, **{**facts, **more})  # type: ignore[arg-type]
