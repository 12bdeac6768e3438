"""How long a record takes at a steady rate: to its acknowledgement, and to a consumer."""

from bench import native
from bench.cells import PACE_BYTES, PACE_PARTITIONS, PACES, POINTS, Pace, latency_rows
from bench.progress import say
from bench.scale import Scale, settle
from bench.subject import Subject

ROWS = latency_rows()
_MODES = {"produce": "latency", "passage": "passage"}


def measure(subject: Subject, scale: Scale) -> dict[str, float]:
    figures: dict[str, float] = {}
    for pace in filter(scale.includes, PACES):
        found = measure_pace(subject, pace, pace.rate * scale.latency_s)
        figures |= {f"{pace.name}-{point}": found[point] for point in POINTS}
        say(f"{subject.name}: {pace.title('p50')}: {found['p50']:.2f} ms, p99 {found['p99']:.2f} ms")
    return figures


def measure_pace(subject: Subject, pace: Pace, records: int) -> dict[str, float]:
    """Milliseconds of each point, on a topic of its own."""
    topic = f"pace-{pace.name}"
    subject.create_topic(topic, PACE_PARTITIONS, pace.durability)
    settle(subject.directory)
    place = (subject.bootstrap, topic, PACE_PARTITIONS, records, PACE_BYTES)
    found = native.run("load", _MODES[pace.kind], *place, pace.acks, pace.rate)
    subject.delete_topic(topic)
    return {point: found[f"{point}_ms"] for point in POINTS}
