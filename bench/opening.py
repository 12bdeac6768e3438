"""How long a broker takes to open many partitions, after a clean stop and after a kill.

The widest case (10,000 partitions, in topics of 1,000) is reported without a bar, and a broker only gets a limited
time for it.
"""

import time
from pathlib import Path

from tests.peers.broker import BrokerError

from bench import native
from bench.progress import say
from bench.rows import Row
from bench.scale import Scale, settle
from bench.subject import Subject, start

PARTITIONS = 1_000
WIDEST = 10_000
TOPIC_WIDTH = 1_000
RECORD_BYTES = 100
RECORDS_EACH = 10
WIDEST_LIMIT_S = 150.0

_THEME = "Many partitions"


def _rows(stem: str, partitions: int) -> list[Row]:
    return [
        Row(f"{stem}-create", _THEME, f"create {partitions:,} partitions and write to each", "s"),
        Row(f"{stem}-clean", _THEME, f"start to ready with {partitions:,} partitions after a clean stop", "s"),
        Row(f"{stem}-killed", _THEME, f"start to ready with {partitions:,} partitions after kill -9", "s"),
        Row(f"{stem}-rss", _THEME, f"memory with {partitions:,} partitions", "MB"),
    ]


ROWS = _rows("open", PARTITIONS)
WIDEST_ROWS = _rows("widest", WIDEST)


def measure(name: str, directory: Path, scale: Scale) -> dict[str, float]:
    return _open(name, directory, "open", scale.partitions(PARTITIONS), None)


def measure_widest(name: str, directory: Path, scale: Scale) -> dict[str, float]:
    """A broker that fails or is too slow has no figures."""
    partitions = scale.partitions(WIDEST)
    try:
        return _open(name, directory, "widest", partitions, time.monotonic() + WIDEST_LIMIT_S)
    except (BrokerError, native.NativeError) as failure:
        say(f"{name}: {partitions:,} partitions: no figures: {str(failure).splitlines()[0]}")
        return {}


def _open(name: str, directory: Path, stem: str, partitions: int, deadline: float | None) -> dict[str, float]:
    def check_time() -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise BrokerError(f"{name} took more than {WIDEST_LIMIT_S:.0f} s with {partitions:,} partitions")

    settle(directory)
    subject = start(name, directory / name)
    figures: dict[str, float] = {}
    try:
        began = time.monotonic()
        for topic, width in _topics(partitions):
            subject.create_topic(topic, width, "defaults")
            native.run("load", "produce", *_place(subject, topic, width), "all")
            check_time()
        figures[f"{stem}-create"] = time.monotonic() - began
        for figure, end in (("killed", subject.kill), ("clean", subject.end)):
            end()
            settle(directory)
            subject.start_again()
            figures[f"{stem}-{figure}"] = subject.broker.ready_s
            check_time()
        for topic, width in _topics(partitions):
            native.run("load", "consume", *_place(subject, topic, width))
            check_time()
        figures[f"{stem}-rss"] = subject.rss_mb()
    finally:
        subject.stop()
    said = ", ".join(f"{key.removeprefix(stem + '-')} {value:.2f}" for key, value in figures.items())
    say(f"{name}: {partitions:,} partitions: {said}")
    return figures


def _topics(partitions: int) -> list[tuple[str, int]]:
    """Names and widths: Kafka's controller refuses to make 10,000 partitions in one go."""
    return [(f"many-{first}", min(TOPIC_WIDTH, partitions - first)) for first in range(0, partitions, TOPIC_WIDTH)]


def _place(subject: Subject, topic: str, width: int) -> tuple[str, str, int, int, int]:
    return subject.bootstrap, topic, width, width * RECORDS_EACH, RECORD_BYTES
