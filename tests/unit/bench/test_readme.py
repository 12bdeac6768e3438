"""The table of figures in README.md."""

from typing import Any

import pytest
from bench.readme import BEGIN, README, renewed, table, two_digits

ONE = {
    "penstock": {
        "default-produce": 744.4,
        "base-cpu": 0.725,
        "slow-default-p50": 0.37,
        "slow-default-p99": 1.96,
        "ready": 0.205,
        "rss-idle": 42.2,
    },
    "kafka": {
        "default-produce": 610.1,
        "base-cpu": 2.19,
        "slow-default-p50": 0.12,
        "slow-default-p99": 2.5,
        "ready": 2.17,
        "rss-idle": 399.0,
    },
}
CLUSTER = {
    "penstock": {"cache-produce": 475.0, "synced-produce": 220.0},
    "kafka": {"cache-produce": 96.2, "synced-produce": 85.8},
}


QUEUES = {
    "shares": [
        {"penstock": {"rate": 277_008.0, "cpu_us": 0.791}, "kafka": {"rate": 75_517.0, "cpu_us": 1.66}},
        {"penstock": {"rate": 1.0, "cpu_us": 9.0}, "kafka": {"rate": 1.0, "cpu_us": 9.0}},
        {"penstock": {"rate": 300_000.0, "cpu_us": 0.1}, "kafka": {"rate": 300_000.0, "cpu_us": 0.1}},
    ]
}


def result(one: dict[str, dict[str, float]]) -> dict[str, Any]:
    return {"command": "some command", "rounds": [one]}


def test_figures_stand_beside_each_other() -> None:
    lines = table(result(ONE), result(CLUSTER), QUEUES).splitlines()
    assert lines[2].endswith("Kafka does not) | 744 MB/s | 610 MB/s |")
    assert lines[3].endswith("page cache | 0.72 s | 2.2 s |")
    assert lines[5].endswith("every replica synced | 475 / 220 MB/s | 96 / 86 MB/s |")
    assert lines[6].endswith("CPU for each | 277 k/s; 0.79 µs | 76 k/s; 1.7 µs |")
    assert lines[7].endswith("when idle | 0.20 s; 42 MB | 2.2 s; 399 MB |")
    assert len(lines) == 8


def test_a_line_says_where_kafka_wins() -> None:
    found = table(result(ONE), result(CLUSTER), QUEUES)
    assert "defaults: Kafka wins, because it does not wait for an fsync | 0.37 / 2.0 ms | 0.12 / 2.5 ms |" in found
    assert found.count("Kafka wins") == 1
    slower = CLUSTER | {"penstock": {"cache-produce": 95.0, "synced-produce": 220.0}}
    assert "replica synced: Kafka wins | 95 / 220 MB/s" in table(result(ONE), result(slower), QUEUES)


def test_a_figure_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="'some command' has no synced-produce of kafka"):
        table(result(ONE), result(CLUSTER | {"kafka": {"cache-produce": 1.0}}), QUEUES)


def test_only_the_table_is_renewed() -> None:
    old = "| old | 1 | 2 |\n| older | 1 | 2 |"
    page = f"# Name\n\nWords:\n\n{BEGIN}{old}\n\nMore.\n\n| another | table |\n"
    assert renewed(page, f"{BEGIN}| new | 3 | 4 |") == page.replace(old, "| new | 3 | 4 |")
    with pytest.raises(ValueError, match="no table of figures"):
        renewed("# Name\n", "")


def test_the_readme_has_the_table_that_is_made() -> None:
    made = table(result(ONE), result(CLUSTER), QUEUES).splitlines()
    standing = README.read_text().partition(BEGIN)[2].partition("\n\n")[0].splitlines()
    words = [line.split("|")[1].partition(": Kafka wins")[0].strip() for line in standing]
    assert words == [line.split("|")[1].partition(": Kafka wins")[0].strip() for line in made[2:]]


@pytest.mark.parametrize(
    ("value", "text"), [(1191.2, "1,191"), (42.2, "42"), (9.96, "10.0"), (2.19, "2.2"), (0.73, "0.73")]
)
def test_two_digits(value: float, text: str) -> None:
    assert two_digits(value) == text
