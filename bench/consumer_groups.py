"""Consumer groups on a broker of their own: rebalancing, a crowd of groups, and Kafka's own performance tool."""

from pathlib import Path

from bench import crowd, jvm, native, rebalancing
from bench.cells import MEGABYTE
from bench.progress import say
from bench.rows import Row
from bench.scale import Scale, settle
from bench.subject import Subject, start

# Each with as many partitions for its own records as it has by default; neither holds a first member up.
SETTINGS = {
    "penstock": {
        "groups.consumer_heartbeat_interval_ms": str(rebalancing.HEARTBEAT_MS),
        "groups.initial_rebalance_delay_ms": "0",
    },
    "kafka": {
        "group.consumer.min.heartbeat.interval.ms": str(rebalancing.HEARTBEAT_MS),
        "group.consumer.heartbeat.interval.ms": str(rebalancing.HEARTBEAT_MS),
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "50",
    },
}
TOOL_MB = 300
TOOL_PARTITIONS = 6
RECORD_BYTES = 1024
PASSES = 2

ROWS = [
    *rebalancing.ROWS,
    *crowd.ROWS,
    Row(
        "tool-consume",
        rebalancing.THEME,
        f"Kafka's consumer performance tool, a group of one, 1 KB, {TOOL_PARTITIONS} partitions",
        "MB/s",
        more_is_better=True,
    ),
    Row("tool-cpu", rebalancing.THEME, "Kafka's consumer performance tool: broker's CPU", "CPU-s/GB"),
]


def measure(name: str, directory: Path, scale: Scale) -> dict[str, float]:
    settle(directory)
    subject = start(name, directory / name, settings=SETTINGS[name])
    try:
        # The tool first: it warms what the others need, and they leave groups behind.
        figures = measure_tool(subject, scale)
        return figures | rebalancing.measure(subject, scale) | crowd.measure(subject, scale)
    finally:
        subject.stop()


def measure_tool(subject: Subject, scale: Scale) -> dict[str, float]:
    """The second of two passes: Kafka serves the first one before its JVM has compiled much."""
    topic, megabytes = "tool", scale.megabytes(TOOL_MB)
    records = megabytes * MEGABYTE // RECORD_BYTES
    subject.create_topic(topic, TOOL_PARTITIONS, "page cache")
    native.run("load", "produce", subject.bootstrap, topic, TOOL_PARTITIONS, records, RECORD_BYTES, "1")
    settle(subject.directory)
    for number in range(PASSES):
        before_s = subject.cpu_s()
        found = jvm.consume_in_group(subject.bootstrap, topic, f"tool-{number}", records)
    took_s = subject.cpu_s() - before_s
    subject.delete_topic(topic)
    rate = found["records"] * RECORD_BYTES / MEGABYTE / found["seconds"]
    say(f"{subject.name}: consumer performance tool: {rate:.0f} MB/s, {found['join_s']:.2f} s to join")
    return {"tool-consume": rate, "tool-cpu": took_s / (found["records"] * RECORD_BYTES / 1e9)}
