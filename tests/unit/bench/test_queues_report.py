"""The page of what queues cost."""

from bench.ledger import BACKLOGS, UNSETTLED
from bench.queues_report import ledger_table, shares_table

KAFKA = {"rate": 100_000.0, "cpu_us": 2.0, "p50_ms": 2.0, "p99_ms": 4.0}


def test_a_bar_is_held_against_the_median_of_the_ratios() -> None:
    ours = [(50_000.0, 0.9), (200_000.0, 1.1), (300_000.0, 1.2)]
    rounds = [
        {"penstock": {"rate": rate, "cpu_us": cpu_us, "p50_ms": 1.0, "p99_ms": 3.0}, "kafka": KAFKA}
        for rate, cpu_us in ours
    ]
    rate, cpu, p50, p99 = shares_table(rounds).splitlines()[2:]
    assert rate.endswith("| 200,000 | 100,000 | 2.00 | >= 1 x Kafka: pass |")
    assert cpu.endswith("| 1.1 | 2 | 0.55 | <= 0.5 x Kafka: **miss** |")
    assert p50.endswith("| 1 | 2 | 0.50 |  |")
    assert p99.endswith("| 0.75 | <= 1 x Kafka: pass |")


def test_what_grows_with_the_backlog_is_a_miss() -> None:
    figures = {f"backlog-{size}-us": 0.4 for size in BACKLOGS} | {f"disorder-{size}-us": 16.0 for size in UNSETTLED}
    figures |= {"engine-rate": 99_000.0, "engine-us": 7.0, "unsettled-mb": 15.0}
    figures[f"backlog-{BACKLOGS[-1]}-us"] = 0.5
    lines = ledger_table([{"compiled": figures, "pure": figures}]).splitlines()
    assert lines[2].endswith(">= 100,000: **miss** |")
    assert lines[5].endswith("<= 1.2 x that of 1,000: 1.00, pass |")
    assert lines[6].endswith("<= 1.2 x that of 1,000: 1.25, **miss** |")
