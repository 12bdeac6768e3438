"""`penstock cluster reassign`, `balance`, `elect`: plans are shown first, asked for, carried out and followed."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import pytest

from penstock.cli.cluster_execution import BrokerIds, Rate
from penstock.cli.cluster_patience import GaveUp, Patience
from penstock.cli.cluster_plan import check_room, make_layout, read_plan
from penstock.cli.cluster_progress import draw_bar, left_to_copy, measure, wait_for_moves
from penstock.cli.cluster_view import THROTTLE, Picture, View
from penstock.cli.connection import Server
from penstock.cli.failure import CommandError
from penstock.cli.main import main
from penstock.cluster.plans import Move

from .cluster_pictures import ADDRESS, Staged, broker, partition, picture, staged

__all__ = ["staged"]

BROKERS = [broker(each) for each in (1, 2, 3, 4)]
SIZES = {("t", 0): 100, ("t", 1): 50}
HERE = picture(BROKERS, partition("t", 0, [1, 2, 3]), partition("t", 1, [2, 3, 1]), sizes=SIZES)
THERE = picture(BROKERS, partition("t", 0, [4, 2, 3]), partition("t", 1, [2, 3, 4]), sizes=SIZES)
ON_THE_WAY = picture(
    BROKERS,
    partition("t", 0, [4, 2, 3, 1], isr=(1, 2, 3), leader=1, adding=(4,), removing=(1,)),
    partition("t", 1, [2, 3, 1]),
    sizes=SIZES,
)
KAFKA = '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[4,2,3],"log_dirs":["any","any","any"]}]}'


def test_a_plan_is_shown_and_needs_consent(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    stage = staged(HERE)
    assert main(["cluster", "reassign", "--topics", "t", "--to", "2,3,4"]) == 2
    told = capsys.readouterr()
    assert told.out.splitlines()[:3] == [
        "PARTITION  NOW ON  THEN ON  COPIED TO  BYTES",
        "t-0         1,2,3    3,2,4          4  100 B",
        "t-1         2,3,1    2,3,4          4  50 B",
    ]
    assert "     1  2 → 0     1 → 0    150 B → 0 B" in told.out
    assert "Move them (2 partitions, 150 B to copy)? Nobody can be asked here: say --yes" in told.err
    assert stage.deeds == []


def test_a_dry_run_prints_what_a_plan_file_takes(
    staged: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = staged(HERE)
    assert main(["cluster", "reassign", "--topics", "t", "--to", "2,3,4", "--dry-run", "-o", "json"]) == 0
    file = tmp_path / "plan.json"
    file.write_text(capsys.readouterr().out)
    assert stage.deeds == []
    written = read_plan(str(file))
    assert written.targets == {("t", 0): [3, 2, 4], ("t", 1): [2, 3, 4]}
    assert written.old == {("t", 0): [1, 2, 3], ("t", 1): [2, 3, 1]}


def test_a_throttle_is_set_for_who_copies_and_lifted_when_all_has_arrived(
    staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = staged(HERE, ON_THE_WAY, THERE)
    stage.settings[4] = {THROTTLE: "7"}
    words = ["cluster", "reassign", "--topics", "t", "--to", "2,3,4", "--throttle", "50MB", "--yes", "-o", "json"]
    stage.pictures[2] = picture(BROKERS, partition("t", 0, [2, 3, 4]), partition("t", 1, [2, 3, 4]))
    assert main(words) == 0
    assert stage.deeds == [
        ("set", 4, {THROTTLE: "50000000"}),
        ("move", {("t", 0): (3, 2, 4), ("t", 1): (2, 3, 4)}),
        ("set", 4, {THROTTLE: "7"}),
    ]
    assert json.loads(capsys.readouterr().out)["status"] == "moved"


THROTTLED = ["cluster", "reassign", "--topics", "t", "--to", "2,3,4", "--throttle", "1k", "--yes"]


def test_a_throttle_is_lifted_when_nothing_could_be_moved(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = staged(HERE)
    monkeypatch.setattr("penstock.cli.cluster_execution.start_moves", refuse)
    assert main(THROTTLED) == 1
    assert stage.deeds == [("set", 4, {THROTTLE: "1000"}), ("set", 4, {THROTTLE: None})]
    assert "the throttle stays" not in capsys.readouterr().err


def test_a_throttle_stays_and_is_told_where_something_is_on_its_way(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = staged(HERE, ON_THE_WAY)
    stage.settings[4] = {THROTTLE: "7"}
    monkeypatch.setattr("penstock.cli.cluster_execution.wait_for_moves", refuse)
    assert main(THROTTLED) == 1
    assert [deed[0] for deed in stage.deeds] == ["set", "move"]
    assert f"config --broker 4 --set {THROTTLE}=7" in capsys.readouterr().err


def test_a_throttle_that_cannot_be_lifted_is_told_and_the_others_are(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def alter(_: View, broker_id: int, changes: dict[str, str | None]) -> None:
        asked.append((broker_id, changes[THROTTLE]))
        if (broker_id, changes[THROTTLE]) == (3, None):
            raise CommandError("no")

    before = picture(BROKERS, partition("t", 0, [1, 2]))
    staged(before, picture(BROKERS, partition("t", 0, [3, 4])))
    monkeypatch.setattr("penstock.cli.cluster_execution.alter_config", alter)
    assert main(["cluster", "reassign", "--topics", "t", "--to", "3,4", "--throttle", "1k", "--yes"]) == 1
    assert asked == [(3, "1000"), (4, "1000"), (3, None), (4, None)]
    assert f"config --broker 3 --unset {THROTTLE}" in capsys.readouterr().err


def refuse(*_: Any) -> None:
    raise CommandError("no")


def test_nobody_waits_and_the_throttle_stays(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    stage = staged(HERE)
    assert (
        main(["cluster", "reassign", "--topics", "t", "--to", "2,3,4", "--throttle", "1k", "--yes", "--no-wait"]) == 0
    )
    assert [deed[0] for deed in stage.deeds] == ["set", "move"]
    told = capsys.readouterr()
    assert "config --broker 4 --unset follower" in told.err
    assert told.out.endswith("moves have begun: 2 partitions, 150 B to copy\n")


def test_refusals_are_told_and_fail(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    stage = staged(HERE)
    stage.refused = {("t", 0): "broker 4 is not there now"}
    assert main(["cluster", "reassign", "--topics", "t", "--to", "2,3,4", "--yes", "--no-wait"]) == 1
    assert "1 of 2 partitions cannot be moved: t-0: broker 4 is not there now" in capsys.readouterr().err


def test_a_move_that_somebody_took_back_is_no_success(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("penstock.cli.cluster_execution.CATCH_UP_S", 0.0)
    staged(HERE, ON_THE_WAY, HERE)
    assert main(["cluster", "reassign", "--topics", "t", "--to", "2,3,4", "--yes"]) == 1
    assert "elsewhere than planned (t-0, t-1)" in capsys.readouterr().err


def test_a_broker_that_hears_late_is_no_stray(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    """One broker has not heard of the move, the next one only of its begin, the last one of its end."""
    arrived = picture(BROKERS, partition("t", 0, [2, 3, 4]), partition("t", 1, [2, 3, 4]))
    staged(HERE, HERE, ON_THE_WAY, ON_THE_WAY, HERE, arrived)
    assert main(["cluster", "reassign", "--topics", "t", "--to", "2,3,4", "--yes"]) == 0
    assert capsys.readouterr().err == ""


def test_a_plan_that_does_not_fit_a_disk_is_not_begun(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    stage = staged(picture([*BROKERS[:3], broker(4, free_bytes=149)], *HERE.partitions, sizes=SIZES))
    assert main(["cluster", "reassign", "--topics", "t", "--to", "2,3,4", "--yes"]) == 1
    told = "the disk of broker 4 has 149 B left, 50 B of it to stay free, and 150 B would be copied to it"
    assert told in capsys.readouterr().err
    assert stage.deeds == []


@pytest.mark.parametrize(("free_bytes", "fits"), [(200, True), (199, False)])
def test_a_twentieth_of_a_disk_stays_free(free_bytes: int, fits: bool) -> None:
    seen = picture([*BROKERS[:3], broker(4, free_bytes=free_bytes)], *HERE.partitions, sizes=SIZES)
    moves = [Move("t", 0, (1, 2, 3), (4, 2, 3), 100), Move("t", 1, (2, 3, 1), (2, 3, 4), 50)]
    with nullcontext() if fits else pytest.raises(CommandError):
        check_room(seen, make_layout(seen), moves)


def test_what_leaves_a_disk_makes_no_room_for_what_comes() -> None:
    brokers = [broker(1, free_bytes=120), *BROKERS[1:]]
    seen = picture(brokers, partition("t", 0, [1, 2]), partition("t", 1, [3, 4]), sizes={("t", 0): 100, ("t", 1): 100})
    moves = [Move("t", 0, (1, 2), (3, 2), 100), Move("t", 1, (3, 4), (1, 4), 100)]
    with pytest.raises(CommandError, match="the disk of broker 1"):
        check_room(seen, make_layout(seen), moves)


def test_what_is_under_way_needs_its_room_as_well() -> None:
    has = {1: 100, 2: 100, 3: 100, 4: 40}
    brokers = [
        broker(each, free_bytes=200 if each == 4 else 900, sizes={("t", 0): size, ("t", 1): 100 * (each < 4)})
        for each, size in has.items()
    ]
    coming = partition("t", 0, [4, 2, 3, 1], isr=(1, 2, 3), leader=1, adding=(4,), removing=(1,))
    seen = picture(brokers, coming, partition("t", 1, [1, 2, 3]))
    assert left_to_copy(seen) == {4: 60}
    with pytest.raises(CommandError, match="100 B would be copied to it, beside 60 B of moves under way"):
        check_room(seen, make_layout(seen), [Move("t", 1, (1, 2, 3), (4, 2, 3), 100)])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "say one of --to, --plan, --status and --cancel"),
        (["--status", "--cancel"], "say one of"),
        (["--to", "1,2,3"], "--to needs --topics"),
        (["--topics", "t", "--to", "1,x"], "'1,x' is no list of broker ids"),
        (["--topics", "t", "--to", "1,1"], "names a broker twice"),
        (["--cancel", "--watch"], "--watch goes with --status"),
        (["--topics", "t", "--to", "2,3,4", "--fewer-replicas"], "--fewer-replicas goes with --plan"),
        (["--topics", "t", "--to", "2,3,4", "--no-wait", "--wait-at-most", "5"], "leave out --wait-at-most"),
        (["--topics", "t", "--to", "1,2", "--throttle", "fast"], "'fast' is no number of bytes"),
    ],
)
def test_wrong_words(words: list[str], told: str, staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    staged(HERE)
    assert main(["cluster", "reassign", *words]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seen", "words", "told"),
    [
        (HERE, ["--topics", "u", "--to", "1,2,3"], "topic 'u' is unknown"),
        (HERE, ["--topics", "t", "--to", "1,2"], "has 3 replicas, and 2 brokers are named for it; name at least 3"),
        (HERE, ["--topics", "t", "--to", "1,7"], "broker 7 is unknown; there are 1, 2, 3"),
        (ON_THE_WAY, ["--topics", "t", "--to", "2,3,4"], "t-0 is being moved already (1 in all)"),
    ],
)
def test_what_cannot_be_done(
    seen: Picture, words: list[str], told: str, staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = staged(seen)
    assert main(["cluster", "reassign", *words, "--yes"]) == 1
    assert told in capsys.readouterr().err
    assert stage.deeds == []


# --- Kafka's plan


def test_kafka_s_plan_is_carried_out(staged: Staged, tmp_path: Path) -> None:
    (tmp_path / "plan").write_text(KAFKA)
    stage = staged(HERE)
    assert main(["cluster", "reassign", "--plan", str(tmp_path / "plan"), "--yes", "--no-wait"]) == 0
    assert stage.deeds == [("move", {("t", 0): (4, 2, 3)})]


def test_fewer_replicas_want_a_word_of_their_own(
    staged: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan"
    file.write_text('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}')
    stage = staged(HERE)
    words = ["cluster", "reassign", "--plan", str(file), "--no-wait"]
    assert main([*words, "--yes"]) == 2
    assert "t-0 would have 2 replicas instead of 3; if that is meant, say --fewer-replicas" in capsys.readouterr().err
    assert main([*words, "--dry-run"]) == 0
    assert "t-0 would have 2 replicas instead of 3" in capsys.readouterr().err
    assert stage.deeds == []
    assert main([*words, "--yes", "--fewer-replicas"]) == 0
    assert stage.deeds == [("move", {("t", 0): (1, 2)})]


def test_a_plan_made_before_others_moved_is_refused(
    staged: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan"
    file.write_text(KAFKA.replace('"log_dirs"', '"old_replicas":[1,2,4],"log_dirs"'))
    stage = staged(HERE)
    assert main(["cluster", "reassign", "--plan", str(file), "--yes", "--no-wait"]) == 1
    assert "t-0 is on 1, 2, 3 by now, and was on 1, 2, 4 when it was planned" in capsys.readouterr().err
    assert stage.deeds == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is no JSON"),
        ("[]", "expected"),
        ('{"version": 2, "partitions": []}', "version 2 of a plan is unknown"),
        ('{"partitions": [{"topic": "t"}]}', "entry 0 needs topic, partition and replicas"),
        ('{"partitions": [7]}', "entry 0 needs"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": ["a"]}]}', "no broker ids"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [true]}]}', "no broker ids"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "old_replicas": 1}]}', "no broker ids"),
        (KAFKA.replace("]}]}", ']},{"topic":"t","partition":0,"replicas":[1]}]}'), "t-0 is there twice"),
    ],
)
def test_plans_that_are_none(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "plan"
    file.write_text(text)
    with pytest.raises(CommandError, match=told) as found:
        read_plan(str(file))
    assert found.value.code == 2


def test_a_plan_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot read"):
        read_plan(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("word", "rate"), [("50MB", 50_000_000), ("1.5GiB", 3 << 29), ("10", 10), ("2 kb/s", 2000), ("1Mi", 1 << 20)]
)
def test_rates(word: str, rate: int) -> None:
    assert Rate().convert(word, None, None) == rate


@pytest.mark.parametrize("word", ["", "MB", "0", "-1MB", "1 parsec", "nan", "inf"])
def test_rates_that_are_none(word: str) -> None:
    with pytest.raises(click.BadParameter):
        Rate().convert(word, None, None)


def test_broker_ids() -> None:
    assert BrokerIds().convert("3, 1", None, None) == (3, 1)


# --- how far it is


def test_progress_counts_what_the_new_broker_has() -> None:
    has = {1: 100, 2: 100, 3: 100, 4: 40}
    brokers = [broker(each, sizes={("t", 0): size}) for each, size in has.items()]
    one = partition("t", 0, [4, 2, 3, 1], isr=(1, 2, 3), leader=1, adding=(4,), removing=(1,))
    (copying,) = measure(picture(brokers, one))
    assert (copying.copied_bytes, copying.total_bytes) == (40, 100)
    assert draw_bar(40, 100) == "████████░░░░░░░░░░░░  40%"
    assert draw_bar(0, 0).endswith("100%")


def test_status_draws_bars(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    staged(ON_THE_WAY)
    assert main(["cluster", "reassign", "--status"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("t-0         4     1  ███")
    staged(HERE)
    assert main(["cluster", "reassign", "--status"]) == 0
    assert capsys.readouterr() == ("", "no partitions on their way\n")


def test_ctrl_c_leaves_the_move_and_says_how_to_see_it(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(**_: Any) -> Picture:
        raise KeyboardInterrupt

    stage = staged(HERE)
    stage.fetch = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        wait_for_moves(View(Server(ADDRESS, "a test")), {("t", 0): 100}, "moving")
    err = capsys.readouterr().err
    assert "penstock cluster reassign --status --watch" in err
    assert "penstock cluster reassign --cancel" in err


def test_a_move_to_a_broker_that_is_away_says_what_it_waits_for(
    staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    away = picture([*BROKERS[:3], broker(4, is_up=False)], *ON_THE_WAY.partitions, sizes=SIZES)
    staged(away, away, THERE)
    wait_for_moves(View(Server(ADDRESS, "a test")), {("t", 0): 100}, "moving")
    assert capsys.readouterr().err == "broker 4 is not running; what moves to it waits until it is\n"


def test_a_wait_ends_when_its_time_is_up_and_the_move_goes_on(
    staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    leaderless = partition("t", 0, [4, 2, 3, 1], isr=(1, 2, 3), leader=-1, adding=(4,), removing=(1,))
    stage = staged(HERE, picture([*BROKERS[:3], broker(4, is_up=False)], leaderless))
    assert main([*THROTTLED, "--wait-at-most", "0"]) == 1
    err = capsys.readouterr().err
    assert "moving: not done after 0 s: nobody leads t-0; broker 4 is not running; the move goes on" in err
    assert "reassign --status --watch" in err
    assert [deed[0] for deed in stage.deeds] == ["set", "move"]
    assert "the throttle stays" in err


def test_a_move_that_stands_still_is_told_with_the_reason(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("penstock.cli.cluster_patience.STALL_S", 0.0)
    stage = staged(*[ON_THE_WAY] * 4, THERE)
    stage.store_answers = False
    wait_for_moves(View(Server(ADDRESS, "a test")), {("t", 0): 100}, "moving")
    assert capsys.readouterr().err == "moving: nothing new for 0 s: the metadata store does not answer\n"


def test_brokers_that_do_not_answer_are_told_and_waited_for(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("penstock.cli.cluster_patience.SILENCE_S", 0.0)
    silences = [CommandError("no server at b:1", code=3)] * 3
    stage = staged(THERE)

    def fetch(**_: Any) -> Picture:
        if silences:
            raise silences.pop()
        return THERE

    stage.fetch = fetch  # type: ignore[method-assign]
    wait_for_moves(View(Server(ADDRESS, "a test")), {("t", 0): 100}, "moving")
    assert capsys.readouterr().err == "moving: no broker answers for 0 s, trying on: no server at b:1\n"
    silences += [CommandError("no server at b:1", code=3)]
    with pytest.raises(GaveUp, match="not done after 0 s: no broker answers; the move goes on"):
        wait_for_moves(View(Server(ADDRESS, "a test")), {("t", 0): 100}, "moving", Patience(0))


def test_moves_are_taken_back_and_those_too_late_are_told(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    stage = staged(ON_THE_WAY, HERE)
    assert main(["cluster", "reassign", "--cancel", "--yes"]) == 0
    assert stage.deeds == [("cancel", [("t", 0)])]
    assert capsys.readouterr().out.endswith("1 move taken back\n")
    staged(ON_THE_WAY, THERE)
    assert main(["cluster", "reassign", "--cancel", "--yes"]) == 0
    assert "1 move had arrived already: t-0" in capsys.readouterr().out


# --- balance and elections


def test_balance_shows_brokers_before_and_after(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    stage = staged(HERE)
    assert main(["cluster", "balance", "--dry-run"]) == 0
    assert "     4  0 → 1" in capsys.readouterr().out
    assert stage.deeds == []
    staged(picture(BROKERS))
    assert main(["cluster", "balance"]) == 0
    assert "brokers are alike by bytes" in capsys.readouterr().out


def test_balance_wants_to_know_every_broker(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    staged(picture([broker(1), broker(2, answers=False)]))
    assert main(["cluster", "balance"]) == 1
    assert "broker 2 does not answer" in capsys.readouterr().err


def test_leaders_are_elected_after_they_were_balanced(staged: Staged) -> None:
    lopsided = picture(BROKERS[:2], partition("t", 0, [1, 2]), partition("t", 1, [1, 2]))
    even = picture(BROKERS[:2], partition("t", 0, [2, 1]), partition("t", 1, [1, 2]))
    stage = staged(lopsided, even)
    assert main(["cluster", "balance", "--by", "leaders", "--yes"]) == 0
    assert stage.deeds == [("move", {("t", 0): (2, 1)}), ("elect", [("t", 0)])]


def test_an_unclean_election_wants_the_words_that_say_what_is_lost(
    staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = picture([broker(1, is_up=False), broker(2)], partition("t", 0, [1, 2], leader=-1, isr=(1,)))
    stage = staged(lost)
    assert main(["cluster", "elect", "--unclean", "--yes"]) == 2
    assert "--yes-lose-records" in capsys.readouterr().err
    assert main(["cluster", "elect", "--unclean"]) == 2
    assert stage.deeds == []
    assert main(["cluster", "elect", "--unclean", "--yes-lose-records"]) == 0
    assert stage.deeds == [("elect", [("t", 0)], {"unclean": True})]
