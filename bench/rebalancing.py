"""How fast a group takes in what is new: nine hundred more partitions, and one more member under load."""

import time

from bench import native
from bench.members import Members, open_members
from bench.progress import say
from bench.rows import Row, at_most
from bench.scale import Scale
from bench.subject import Subject
from bench.timeline import longest_gap_s, ownership, unmoved

MEMBERS = 10
NARROW, WIDE = 100, 1_000
HEARTBEAT_MS = 200
DEFAULT_HEARTBEAT_MS = 3_000
PARTITIONS = 55  # ten members have five or six, eleven have five each
RATE = 1_000
RECORD_BYTES = 100
_PATIENCE_S = 90.0
_FLOW_S = 1.0
_LONGEST_S = 120
_COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
_CONSUMER = {"auto.offset.reset": "earliest"}

THEME = "Consumer groups"


def _newcomer_rows(stem: str, heartbeat_ms: int, limit_s: float) -> list[Row]:
    kept = f"heartbeats every {heartbeat_ms:,} ms"
    return [
        Row(
            f"{stem}-stable",
            THEME,
            f"an 11th cooperative-sticky member joins, {kept}: until it has its partitions and all is stable",
            "s",
            (at_most(limit_s, "nothing"),),
        ),
        Row(
            f"{stem}-gap",
            THEME,
            f"an 11th cooperative-sticky member joins, {kept}: longest gap in the partitions that stay",
            "s",
            (at_most(0.5, "nothing"),),
        ),
    ]


ROWS = [
    Row(
        "growth",
        THEME,
        f"{MEMBERS} members (KIP-848, heartbeats every {HEARTBEAT_MS} ms), {NARROW} partitions grown to {WIDE:,}: "
        "from the request until each has one owner",
        "s",
    ),
    Row("growth-assigned", THEME, "the same, from the answer to the request", "s"),
    *_newcomer_rows("prompt-newcomer", HEARTBEAT_MS, 1.0),
    *_newcomer_rows("newcomer", DEFAULT_HEARTBEAT_MS, 2 * DEFAULT_HEARTBEAT_MS / 1000 + 1),
]


def measure(subject: Subject, scale: Scale) -> dict[str, float]:
    figures = measure_growth(subject, scale) | measure_newcomer(subject, "prompt-newcomer", HEARTBEAT_MS)
    if scale.share < 1:  # a small run shows that it works; the slow heartbeats would be most of its time
        return figures
    return figures | measure_newcomer(subject, "newcomer", DEFAULT_HEARTBEAT_MS)


def measure_growth(subject: Subject, scale: Scale) -> dict[str, float]:
    """The brokers were told the heartbeat interval; with KIP-848 it is theirs to say."""
    topic, wide = "growth", NARROW + scale.partitions(WIDE - NARROW)
    subject.create_topic(topic, NARROW, "page cache")
    config = _CONSUMER | {"group.id": topic, "group.protocol": "consumer"}
    with open_members(subject.bootstrap, topic, MEMBERS, config) as members:
        members.wait_whole(NARROW, _PATIENCE_S, quiet_s=1.0)
        asked_s = time.monotonic()
        subject.add_partitions(topic, wide)
        answered_s = time.monotonic()
        whole_s = members.wait_whole(wide, _PATIENCE_S, quiet_s=1.0)
        members.close()
    subject.delete_topic(topic)
    say(f"{subject.name}: {wide} partitions have an owner after {whole_s - asked_s:.2f} s")
    return {"growth": whole_s - asked_s, "growth-assigned": max(0.0, whole_s - answered_s)}


def measure_newcomer(subject: Subject, stem: str, heartbeat_ms: int) -> dict[str, float]:
    subject.create_topic(stem, PARTITIONS, "page cache")
    config = _CONSUMER | {
        "group.id": stem,
        "group.protocol": "classic",
        "partition.assignment.strategy": _COOPERATIVE,
        "heartbeat.interval.ms": str(heartbeat_ms),
    }
    place = (subject.bootstrap, stem, PARTITIONS, _LONGEST_S * RATE, RECORD_BYTES)
    with (
        native.running("load", "latency", *place, "1", RATE) as producer,
        open_members(subject.bootstrap, stem, MEMBERS, config) as members,
    ):
        members.wait_whole(PARTITIONS, _PATIENCE_S, quiet_s=_FLOW_S + heartbeat_ms / 1000)
        members.join()
        stable_s = members.wait_whole(PARTITIONS, _PATIENCE_S, quiet_s=0.5 + heartbeat_ms / 1000)
        ended_s = time.monotonic()
        members.close()
        producer.stop()
        producer.finish()
    joined_s = members.joined_s(MEMBERS)
    gap_s = _gap_of_unmoved(members, joined_s, ended_s)
    subject.delete_topic(stem)
    took_s = stable_s - joined_s
    say(f"{subject.name}: heartbeats of {heartbeat_ms} ms: a newcomer takes {took_s:.2f} s, gap {gap_s:.2f} s")
    return {f"{stem}-stable": took_s, f"{stem}-gap": gap_s}


def _gap_of_unmoved(members: Members, joined_s: float, ended_s: float) -> float:
    stayed = unmoved(ownership(members.changes, joined_s), ownership(members.changes, ended_s))
    if not stayed:
        raise native.NativeError("no partition stayed with its member when another one joined")
    return longest_gap_s({each: members.arrivals.get(each, []) for each in stayed}, joined_s, ended_s)
