"""The judge bites: histories and files with a fault planted in them are found out, and good ones are not."""

from pathlib import Path

import pytest

from tests.chaos.history import Outcome, PartitionLog, Record, Send
from tests.chaos.queue_history import Kind as QueueKind
from tests.cluster.cluster_process import Partition
from tests.matrix import judge
from tests.matrix.__main__ import SAMPLES, _chosen
from tests.matrix.cells import CELLS, GROUPS, SMOKE
from tests.matrix.judge import (
    Knock,
    counts,
    judge_acks,
    judge_crashes,
    judge_epochs,
    judge_history,
    judge_refusals,
    judge_replicas,
    judge_same_epochs,
    longest_gap,
    rate,
    with_what_was_read,
)
from tests.matrix.replicas import Batch, Decision, go_on, read_batches
from tests.matrix.report import page, soak_section
from tests.matrix.run import Result
from tests.matrix.soak import Sample, by_quarters, judge_samples, slope_per_hour
from tests.matrix.workload import Knocks, TimedHistory

VALUES = ["p0-0", "p0-1", "p0-2"]


def history_of(*values: str) -> TimedHistory:
    """Sent in this order, each acked at its offset."""
    history = TimedHistory()
    for offset, value in enumerate(values):
        history.sent(Send("p0", offset, 0, value))
        history.settled(value, Outcome.OK, offset)
    return history


def log_of(*values: str) -> dict[int, PartitionLog]:
    records = [Record(0, offset, value) for offset, value in enumerate(values)]
    return {0: PartitionLog(0, len(values), records)}


def batch(base: int, epoch: int = 0, digest: str = "same") -> Batch:
    return Batch(base, base + 1, epoch, digest)


class TestHistory:
    def test_a_good_one_has_no_findings(self) -> None:
        assert judge_history(history_of(*VALUES), log_of(*VALUES)) == []

    def test_an_acked_record_that_is_not_there_is_lost(self) -> None:
        found = counts(judge_history(history_of(*VALUES), log_of(*VALUES[:2])))
        assert found == {"lost": 1}

    def test_a_record_that_is_there_twice_is_a_duplicate(self) -> None:
        found = counts(judge_history(history_of(*VALUES), log_of(*VALUES, VALUES[0])))
        assert found["duplicate"] == 1

    def test_records_in_another_order_are_reordered(self) -> None:
        history = TimedHistory()
        for sequence, value in enumerate(VALUES):
            history.sent(Send("p0", sequence, 0, value))  # outcomes unknown: only the order is a promise
        found = counts(judge_history(history, log_of(VALUES[0], VALUES[2], VALUES[1])))
        assert found == {"reordered": 1}

    def test_two_acks_of_one_offset_are_found(self) -> None:
        history = history_of(*VALUES)
        history.sent(Send("q", 0, 0, "q-0"))
        history.settled("q-0", Outcome.OK, 2)
        assert "double_ack" in counts(judge_history(history, log_of(*VALUES, "q-0")))

    def test_what_a_reader_saw_must_stay(self) -> None:
        history = history_of(*VALUES)
        history.sent(Send("p0", 3, 0, "p0-3"))
        history.seen["r"] += [Record(0, 2, "p0-2"), Record(0, 3, "p0-3")]
        assert counts(judge_history(history, log_of(*VALUES))) == {"vanished": 1}

    def test_what_is_lost_counts_as_lost_in_the_line_of_a_cell(self) -> None:
        assert set(judge.LOST_KINDS) >= {"lost", "vanished", QueueKind.LOST}
        assert set(judge.DUPLICATE_KINDS) >= {"duplicate", "double_ack", QueueKind.AGAIN, QueueKind.BURIED_TWICE}

    def test_only_the_producers_acks_are_timed(self) -> None:
        history = history_of(*VALUES)
        history.sent(Send("k", 0, 0, f"{Knocks.PREFIX}1-1"))
        history.settled(f"{Knocks.PREFIX}1-1", Outcome.OK, 3)
        assert len(history.acks[0]) == len(VALUES)


DECIDED = {0: [Decision(1, 0, (1, 2, 3), (1, 2, 3)), Decision(2, 1, (2, 3), (1, 2, 3))]}
FILES = {0: [batch(0, epoch=0), batch(2, epoch=1)]}


class TestLeaders:
    def test_each_led_when_it_acked(self) -> None:
        acks = [Knock(1, 0, 1, "a"), Knock(2, 0, 2, "b")]
        assert judge_acks(acks, DECIDED, FILES) == []

    def test_an_ack_of_a_deposed_leader_is_split_brain(self) -> None:
        """Its offset belongs to an epoch that another broker led."""
        found = judge_acks([Knock(1, 0, 2, "a")], DECIDED, FILES)
        assert counts(found) == {judge.SPLIT_BRAIN: 1}

    def test_an_ack_of_what_is_on_no_disk_is_split_brain(self) -> None:
        assert counts(judge_acks([Knock(2, 0, 9, "a")], DECIDED, FILES)) == {judge.SPLIT_BRAIN: 1}

    def test_what_is_below_the_start_of_the_log_says_nothing(self) -> None:
        assert judge_acks([Knock(1, 0, 0, "a")], DECIDED, {0: [batch(2, epoch=1)]}) == []

    def test_the_store_changes_leaders_with_epochs_only(self) -> None:
        assert judge_epochs(DECIDED) == []
        twice = {0: [Decision(1, 4, (1, 2), (1, 2)), Decision(2, 4, (1, 2), (1, 2))]}
        back = {0: [Decision(1, 4, (1, 2), (1, 2)), Decision(1, 3, (1, 2), (1, 2))]}
        assert counts(judge_epochs(twice)) == counts(judge_epochs(back)) == {judge.TWO_LEADERS: 1}

    def test_nobody_leading_is_no_second_leader(self) -> None:
        assert judge_epochs({0: [Decision(1, 4, (1,), (1, 2)), Decision(-1, 4, (1,), (1, 2))]}) == []


class TestWhatRetentionRemoved:
    """Five were acked, the log begins at 3 now: a reader that was there in time knows the others."""

    @pytest.mark.parametrize(
        ("read", "kinds"),
        [
            (["p0-0", "p0-1", "p0-2"], set()),
            (["p0-0", "p0-2"], {"lost", "moved", "gap"}),
            (["p0-0", "p0-1", "p0-1"], {"lost", "duplicate"}),
            (["p0-0", "p0-2", "p0-1"], {"moved", "reordered"}),
        ],
        ids=["good", "lost", "doubled", "swapped"],
    )
    def test_it_is_judged_by_what_was_read_of_it(self, read: list[str], kinds: set[str]) -> None:
        history = history_of("p0-0", "p0-1", "p0-2", "p0-3", "p0-4")
        left = {0: PartitionLog(3, 5, [Record(0, 3, "p0-3"), Record(0, 4, "p0-4")])}
        history.seen["r"] = [Record(0, offset, value) for offset, value in enumerate(read)]
        found = counts(judge_history(history, with_what_was_read(history, "r", left)))
        assert set(found) == kinds


class TestWhoEndedAndWhoLed:
    def test_nobody_ends_but_those_who_shall(self) -> None:
        assert judge_crashes({1: [], 2: [1], 3: []}, {2}) == []
        assert counts(judge_crashes({1: [], 2: [1], 3: [134]}, {2})) == {judge.CRASHED: 1}

    def test_an_ack_while_too_few_are_in_sync_is_found(self) -> None:
        assert judge_refusals({0: [1.0, 9.0], 1: []}, 2.0, 8.0) == []
        assert counts(judge_refusals({0: [1.0, 5.0], 1: [6.0, 7.0]}, 2.0, 8.0)) == {judge.NOT_REFUSED: 2}

    def test_an_election_is_found(self) -> None:
        before = {0: Partition(1, 4, (1, 2), (1, 2)), 1: Partition(2, 7, (1, 2), (1, 2))}
        smaller = {**before, 0: Partition(1, 4, (1, 2), (1,))}
        elected = {**before, 1: Partition(2, 8, (1, 2), (1, 2))}
        assert judge_same_epochs(before, smaller) == []
        assert counts(judge_same_epochs(before, elected)) == {judge.ELECTED: 1}

    def test_after_an_old_copy_of_the_store_only_later_epochs_count(self) -> None:
        forgotten = [Decision(1, 1, (1, 2), (1, 2)), Decision(2, 2, (1, 2), (1, 2))]
        again = [Decision(1, 1, (1, 2), (1, 2)), Decision(1, 2, (1,), (1, 2)), Decision(1, 3, (1,), (1, 2))]
        whole = go_on({0: forgotten}, {0: again})
        assert [(each.leader, each.epoch) for each in whole[0]] == [(1, 1), (2, 2), (1, 3)]
        assert judge_epochs(whole) == []
        late = judge_acks([Knock(1, 0, 0, "a")], whole, {0: [batch(0, epoch=2)]})
        assert counts(late) == {judge.SPLIT_BRAIN: 1}


class TestReplicas:
    def test_the_same_is_fine_also_when_retention_took_more_of_one(self) -> None:
        one_is_shorter = {0: {1: [batch(0), batch(2)], 2: [batch(2)]}}
        assert judge_replicas(one_is_shorter, trimmed=True) == []
        assert counts(judge_replicas(one_is_shorter)) == {judge.REPLICAS_DIFFER: 1}
        assert judge_replicas({0: {1: [], 2: []}}) == []

    @pytest.mark.parametrize(
        "other",
        [[], [batch(0)], [batch(0), batch(2, digest="other")], [batch(0), batch(2, epoch=7)], [batch(0), batch(3)]],
        ids=["empty", "short", "other bytes", "other epoch", "other offsets"],
    )
    def test_other_content_is_found(self, other: list[Batch]) -> None:
        found = judge_replicas({0: {1: [batch(0), batch(2)], 2: other}})
        assert counts(found) == {judge.REPLICAS_DIFFER: 1}

    def test_files_are_read_to_the_first_thing_that_is_no_batch(self, tmp_path: Path) -> None:
        whole = (7).to_bytes(8) + (49).to_bytes(4) + (3).to_bytes(4) + b"\x02" + bytes(4) + bytes(2) + (4).to_bytes(4)
        whole += bytes(12 + 49 - len(whole))
        (tmp_path / "00000000000000000007.log").write_bytes(whole + whole[:20])
        (read,) = read_batches(tmp_path)
        assert read[:3] == (7, 11, 3)


class TestSoak:
    def test_a_page_tells_of_the_quarters_and_of_what_was_found(self) -> None:
        samples = [Sample(float(at), (100 + at // 4) << 20, 30 + at // 4, 9) for at in range(16)]
        quarters = by_quarters(samples)
        assert [(each["rss_mib"], each["files"]) for each in quarters] == [(100, 30), (101, 31), (102, 32), (103, 33)]
        growth = {"memory_per_hour": 0.01, "files_per_hour": -0.02, "quarters": quarters}
        run = {"date": "2026-01-01 10:00", **Result("soak", 1, texts=["lost: one"]).as_json(), **growth, "gap_s": 1.0}
        text = soak_section(run)
        assert "| quarter 4 | 103.0 MiB | 33.0 | 9.0 |" in text
        assert "+1.0%" in text and "-2.0%" in text and "Verdict: failed" in text and "- lost: one" in text


class TestPace:
    def test_the_longest_gap_counts_from_the_last_ack_before_to_the_end(self) -> None:
        assert longest_gap([1.0, 9.5, 10.5, 14.0, 14.5], 10.0, 15.0) == pytest.approx(3.5)
        assert longest_gap([9.5], 10.0, 15.0) == pytest.approx(5.5)
        assert longest_gap([], 10.0, 15.0) == pytest.approx(5.0)

    def test_a_slope_is_a_share_of_the_mean_by_the_hour(self) -> None:
        assert slope_per_hour([(0.0, 100.0), (1800.0, 105.0), (3600.0, 110.0)]) == pytest.approx(10 / 105)

    def test_a_witness_that_grows_is_found_and_one_that_stays_is_not(self) -> None:
        grows = [Sample(at, 100_000 + at * 10, 50, 9) for at in range(0, 3600, 10)]
        stays = [Sample(at, 100_000, 50, 9) for at in range(0, 3600, 10)]
        leaks = [Sample(at, 100_000, 50 + at // 60, 9) for at in range(0, 3600, 10)]
        assert [len(judge_samples(samples, 0.05)[2]) for samples in (grows, stays, leaks)] == [1, 0, 1]

    def test_a_rate_is_of_what_lies_between(self) -> None:
        assert rate([1.0, 2.0, 3.0, 9.0], 1.5, 3.5) == pytest.approx(1.0)


class TestTable:
    def test_there_are_enough_cells_and_each_has_a_name_of_its_own(self) -> None:
        assert len(CELLS) == sum(len(cells) for cells in GROUPS.values()) >= 60
        assert set(SMOKE) <= set(CELLS)
        assert 6 <= len(SMOKE) <= 11
        assert {CELLS[name].workload for name in SMOKE} >= {"queue", "sorted"}

    @pytest.mark.parametrize("night", range(SAMPLES))
    def test_each_night_has_cells_of_queues(self, night: int) -> None:
        assert sum(cell.workload == "queue" for cell in _chosen("sample", night)) >= 4

    def test_the_page_has_the_last_figures_and_a_verdict_of_all_runs(self) -> None:
        """A cell that failed once is not made good by running it again."""
        bad = Result("kill-leader", 2, "killed", "all", acked=10, lost=1, texts=["lost: x"], findings={"lost": 1})
        good = Result("kill-leader", 1, "killed", "all", acked=1234, verdict="ok")
        runs = [
            {"date": "2026-02-01 10:00", "machine": "m", "results": [good.as_json()]},
            {"date": "2026-01-01 10:00", "machine": "m", "results": [bad.as_json()]},
        ]
        text = page(runs)
        assert "0 ok in every run, 1 not. 1,244 records acknowledged, 1 lost" in text
        assert "| 1,234 | 0 | 0 |" in text
        assert "1 of 2 ok |" in text
        assert "- `kill-leader` (seed 2): lost 1. lost: x" in text
