"""The table of what TLS costs: medians of the rounds, and of the ratios within each."""

from bench.tls import table


def test_ratios_are_of_the_two_that_ran_beside_each_other() -> None:
    rounds = [
        {"penstock": {"cpu-produce": ours}, "kafka": {"cpu-produce": theirs}}
        for ours, theirs in ((1.0, 2.0), (4.0, 4.0), (3.0, 12.0))
    ]
    line = next(line for line in table(rounds).splitlines() if "GB written" in line)
    assert line.split()[-3:] == ["3.000", "4.000", "0.50"]


def test_one_broker_alone_has_no_ratio_and_what_was_left_out_has_no_line() -> None:
    told = table([{"penstock": {"login-ms": 0.25, "cpu-produce": 1.0}}])
    assert "0.250" in told
    assert "idle" not in told
    assert not told.splitlines()[-1].endswith("1.00")
