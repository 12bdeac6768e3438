"""`penstock cluster cordon`, `drain`, `decommission`, `replace`, `config`, `restart`: in order, and never too early."""

import json
import re
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.cluster_view import CORDON, THROTTLE, Picture
from penstock.cli.failure import CommandError
from penstock.cli.main import main
from penstock.cluster import broker_settings

from .cluster_pictures import Staged, broker, partition, picture, staged
from .test_lean_start import modules_after

__all__ = ["staged"]

BROKERS = [broker(each) for each in (1, 2, 3, 4)]
FULL = picture(BROKERS, partition("t", 0, [4, 2, 3]), partition("t", 1, [2, 3, 4]))
EMPTIED = picture(BROKERS, partition("t", 0, [1, 2, 3]), partition("t", 1, [2, 3, 1]))
STOPPED = picture([*BROKERS[:3], broker(4, is_up=False)], *EMPTIED.partitions)


def test_a_cordon_is_set_and_lifted(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    stage = staged(FULL)
    assert main(["cluster", "cordon", "4"]) == 0
    assert main(["cluster", "uncordon", "4"]) == 0
    assert stage.deeds == [("set", 4, {CORDON: "cordoned"}), ("set", 4, {CORDON: None})]
    assert capsys.readouterr().out.splitlines() == [
        "broker 4 is cordoned",
        "broker 4 takes replicas and leads already",
    ]
    assert main(["cluster", "cordon", "9"]) == 1
    assert "broker 9 is unknown; there are 1, 2, 3, 4" in capsys.readouterr().err


def test_a_cordon_does_not_let_a_drained_broker_lead(staged: Staged) -> None:
    stage = staged(picture([broker(1, cordon="drained")]))
    assert main(["cluster", "cordon", "1"]) == 0
    assert stage.deeds == []


def test_drain_returns_when_the_broker_leads_nothing(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    handed_over = picture(BROKERS, partition("t", 0, [4, 2, 3], leader=2), partition("t", 1, [2, 3, 4]))
    stage = staged(FULL, FULL, FULL, handed_over)
    assert main(["cluster", "drain", "4"]) == 0
    assert stage.deeds == [("set", 4, {CORDON: "drained"})]
    assert stage.pictures == [handed_over]
    assert capsys.readouterr().out == "broker 4 leads nothing\n"


def test_drain_ends_where_nobody_else_can_lead(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    staged(picture(BROKERS, partition("t", 0, [4, 2], isr=(4,)), partition("u", 0, [4], min_isr=1)))
    assert main(["cluster", "drain", "4"]) == 1
    assert "still leads 2 partitions that nobody else has in sync: t-0, u-0" in capsys.readouterr().err


def test_a_drain_taken_back_hands_back_what_the_broker_should_lead(staged: Staged) -> None:
    led_by_2 = picture(BROKERS, partition("t", 0, [4, 2, 3], leader=2), partition("t", 1, [2, 3, 4]))
    stage = staged(led_by_2, FULL)
    assert main(["cluster", "drain", "4", "--undo"]) == 0
    assert stage.deeds == [("set", 4, {CORDON: None}), ("elect", [("t", 0)])]


def test_what_is_handed_back_is_counted_when_it_is_known(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    led_by_2 = picture(BROKERS, partition("t", 0, [4, 2, 3], leader=2), partition("t", 1, [2, 3, 4]))
    staged(led_by_2, led_by_2, led_by_2, FULL)
    assert main(["cluster", "drain", "4", "--undo"]) == 0
    assert capsys.readouterr().out == "broker 4 leads 1 partition again\n"


def test_what_is_never_handed_back_is_not_waited_for_long(
    staged: Staged, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.cluster_brokers.CATCH_UP_S", 0.0)
    staged(picture(BROKERS, partition("t", 0, [4, 2, 3], leader=2)))
    assert main(["cluster", "drain", "4", "--undo"]) == 0
    assert capsys.readouterr().out == "broker 4 leads 0 partitions again\n"


def test_a_drain_taken_back_tells_what_is_not_handed_back(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    stage = staged(picture(BROKERS, partition("t", 0, [4, 2, 3], leader=2)))
    stage.unelected = {("t", 0): "broker 4 cannot lead t-0"}
    assert main(["cluster", "drain", "4", "--undo"]) == 1
    told = capsys.readouterr()
    assert told.out == "broker 4 leads 0 partitions again\n"
    assert "does not lead 1 partition: t-0: broker 4 cannot lead t-0" in told.err


def test_a_drain_taken_back_of_a_broker_that_is_down(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    staged(picture([*BROKERS[:3], broker(4, is_up=False)], partition("t", 0, [4, 2, 3], leader=2, isr=(2, 3))))
    assert main(["cluster", "drain", "4", "--undo"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "broker 4 may lead again, and is not running" in told.err


def test_a_drain_taken_back_before_the_broker_is_in_sync(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    staged(picture(BROKERS, partition("t", 0, [4, 2, 3], leader=2, isr=(2, 3))))
    assert main(["cluster", "drain", "4", "--undo", "-o", "json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["not_in_sync"] == 1
    assert "not in sync yet for t-0" in told.err


def test_drain_gives_up_on_a_partition_whose_heir_nobody_elects(
    staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    staged(replace(FULL, controller=-1))
    assert main(["cluster", "drain", "4", "--wait-at-most", "0"]) == 1
    err = capsys.readouterr().err
    assert "there is no controller; nobody has elected another leader for t-0" in err
    assert "broker 4 stays drained; 'penstock cluster drain 4 --undo' takes it back" in err


@pytest.mark.parametrize(
    ("words", "again"), [(["decommission", "4"], "decommission 4"), (["replace", "4", "1"], "replace 4 1")]
)
def test_who_does_not_wait_is_told_how_to_go_on(
    words: list[str], again: str, staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = staged(FULL)
    assert main(["cluster", *words, "--yes", "--no-wait"]) == 0
    assert capsys.readouterr().out.endswith(f"have begun; 'penstock cluster {again}' goes on when they are done\n")
    stage = staged(EMPTIED)
    assert main(["cluster", *words, "--yes", "--no-wait"]) == 0
    told = f"broker 4 is empty; stop it, then 'penstock cluster {again}' has it forgotten\n"
    assert capsys.readouterr().out == told
    assert "forget" not in [deed[0] for deed in stage.deeds]
    assert main(["cluster", *words, "--yes", "--wait-at-most", "0"]) == 1
    assert told.rstrip().removeprefix("broker 4 is empty; ") in capsys.readouterr().err
    stage = staged(STOPPED)
    assert main(["cluster", *words, "--yes", "--no-wait"]) == 0
    assert "forget" in [deed[0] for deed in stage.deeds]


def test_decommission_cordons_moves_waits_for_the_stop_and_forgets(
    staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = staged(FULL, FULL, EMPTIED, EMPTIED, EMPTIED, EMPTIED, STOPPED)
    assert main(["cluster", "decommission", "4", "--yes"]) == 0
    told = capsys.readouterr()
    assert "broker 4 is empty: stop it now" in told.err
    assert told.out.endswith("broker 4 is forgotten; 2 partitions moved off it\n")
    names = [deed[0] for deed in stage.deeds]
    assert names == ["set", "move", "forget"]
    assert all(4 not in replicas for replicas in stage.deeds[1][1].values())


def test_decommission_shows_its_plan_and_needs_consent(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    stage = staged(FULL)
    assert main(["cluster", "decommission", "4"]) == 2
    assert "Move everything off broker 4 (2 partitions, 0 B to copy)?" in capsys.readouterr().err
    assert main(["cluster", "decommission", "4", "--dry-run"]) == 0
    assert capsys.readouterr().out.endswith("2 partitions would move off broker 4\n")
    assert stage.deeds == []


def test_a_broker_that_is_empty_and_stopped_is_only_forgotten(staged: Staged) -> None:
    stage = staged(STOPPED)
    assert main(["cluster", "decommission", "4", "--yes"]) == 0
    assert [deed[0] for deed in stage.deeds] == ["set", "forget"]


def test_one_broker_is_emptied_at_a_time(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    emptying = partition("t", 0, [1, 2, 3, 4], isr=(2, 3, 4), adding=(1,), removing=(4,))
    stage = staged(picture([*BROKERS[:3], broker(4, cordon="cordoned")], emptying))
    assert main(["cluster", "decommission", "3", "--yes"]) == 1
    assert "broker 4 is being emptied, 1 partition to go; one at a time" in capsys.readouterr().err
    assert stage.deeds == []


def test_a_broker_that_is_emptied_while_the_question_is_open(
    staged: Staged, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two terminals, both asked, both answered: the second one finds the first one at it."""
    brokers = [*BROKERS[:3], broker(4, cordon="cordoned")]
    on_its_way = partition("t", 0, [1, 2, 3, 4], isr=(2, 3, 4), leader=4, adding=(1,), removing=(4,))
    stage = staged(FULL, picture(brokers, on_its_way, FULL.partitions[1]))
    monkeypatch.setattr("penstock.cli.cluster_execution.confirm", lambda *_: True)
    assert main(["cluster", "decommission", "3"]) == 1
    assert "broker 4 is being emptied, 1 partition to go; one at a time" in capsys.readouterr().err
    assert stage.deeds == []


T_0, T_1 = FULL.partitions


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (picture([broker(1, cordon="cordoned"), *BROKERS[1:]], T_0, T_1), "broker 1 takes nothing any more"),
        (picture([broker(1, is_up=False), *BROKERS[1:]], T_0, T_1), "broker 1 takes nothing any more"),
        (picture(BROKERS[1:], T_0, T_1), "broker 1 takes nothing any more"),
        (picture(BROKERS, T_0, partition("t", 1, [2, 1, 4])), "broker 4 holds other partitions now"),
        (picture(BROKERS, T_0, T_1, partition("u", 0, [4, 1, 2])), "broker 4 holds other partitions now"),
        (picture(BROKERS, T_0), "broker 4 holds other partitions now"),
    ],
)
def test_a_plan_that_was_shown_and_is_out_of_date_is_not_run(
    now: Picture, told: str, staged: Staged, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = staged(FULL, now)
    monkeypatch.setattr("penstock.cli.cluster_execution.confirm", lambda *_: True)
    assert main(["cluster", "decommission", "4"]) == 1
    err = capsys.readouterr().err
    assert told in err
    assert "nothing was done" in err
    assert "again: 'penstock cluster decommission 4'" in err
    assert stage.deeds == []


def test_the_plan_that_was_shown_is_the_one_that_runs(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where, by bytes written meanwhile, another one would be made now."""
    brokers = [broker(each, disk_bytes=10**6, free_bytes=10**6) for each in (1, 2, 3, 4)]
    parts = [partition("t", 0, [4], min_isr=1), partition("t", 1, [4], min_isr=1), partition("u", 0, [1], min_isr=1)]
    before = picture(brokers, *parts, sizes={("t", 0): 100, ("t", 1): 10, ("u", 0): 1})
    grown = picture(brokers, *parts, sizes={("t", 0): 10, ("t", 1): 100, ("u", 0): 5000})
    stage = staged(before)
    assert main(["cluster", "decommission", "4", "--dry-run", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["partitions"]
    stage = staged(before, grown)
    assert main(["cluster", "decommission", "4", "--yes", "--no-wait"]) == 0
    shown = {(row["topic"], row["partition"]): tuple(row["replicas"]) for row in rows}
    assert stage.deeds == [("set", 4, {CORDON: "cordoned"}), ("move", shown)]


@pytest.mark.parametrize("words", [["decommission", "4"], ["replace", "4", "1"]])
def test_a_throttle_holds_for_moves_that_are_under_way(words: list[str], staged: Staged) -> None:
    cordoned = [*BROKERS[:3], broker(4, cordon="cordoned")]
    on_its_way = partition("t", 0, [1, 2, 3, 4], isr=(2, 3, 4), leader=4, adding=(1,), removing=(4,))
    moving = picture(cordoned, on_its_way, EMPTIED.partitions[1])
    stage = staged(*([moving] * (3 if words[0] == "decommission" else 4)), STOPPED)
    assert main(["cluster", *words, "--yes", "--throttle", "5MB"]) == 0
    throttled = [deed for deed in stage.deeds if THROTTLE in str(deed)]
    assert throttled == [("set", 1, {THROTTLE: "5000000"}), ("set", 1, {THROTTLE: None})]
    assert [deed[0] for deed in stage.deeds] == ["set", "set", "set", "forget"]


def test_replace_puts_the_new_one_where_the_lost_one_was(staged: Staged) -> None:
    lost = [broker(1), broker(2), broker(3, is_up=False), broker(4)]
    before = picture(lost, partition("t", 0, [3, 1, 2], leader=1, isr=(1, 2)))
    after = picture(lost, partition("t", 0, [4, 1, 2]))
    stage = staged(before, before, before, after)
    assert main(["cluster", "replace", "3", "4", "--yes"]) == 0
    assert stage.deeds == [("set", 3, {CORDON: "cordoned"}), ("move", {("t", 0): (4, 1, 2)}), ("forget", 3)]


def test_what_nobody_leads_is_told_before_it_is_replaced(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    lost = [broker(1), broker(2, is_up=False), broker(3)]
    staged(picture(lost, partition("t", 0, [2], leader=-1, min_isr=1)))
    assert main(["cluster", "replace", "2", "3", "--dry-run"]) == 0
    assert "nobody leads t-0: there is nothing to copy from" in capsys.readouterr().err


def test_settings_of_some_brokers_and_of_all(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    stage = staged(FULL)
    stage.settings = {None: {"log.retention.ms": "5"}, 2: {CORDON: "cordoned"}}
    assert main(["cluster", "config", "--set", "a=1", "--unset", "b", "--dry-run"]) == 0
    assert stage.deeds == [("set", None, {"b": None, "a": "1"}, {"dry_run": True})]
    assert "all     log.retention.ms      5" in capsys.readouterr().out
    assert main(["cluster", "config", "--broker", "1,2", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"broker": 2, "name": CORDON, "value": "cordoned"}]
    assert main(["cluster", "config", "--set", "a=1", "--unset", "a"]) == 2


def test_settings_of_single_brokers_are_not_hidden(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    stage = staged(FULL)
    assert main(["cluster", "config"]) == 0
    assert capsys.readouterr() == ("", "no settings made at run time\n")
    stage.settings = {3: {THROTTLE: "5000000"}}
    assert main(["cluster", "config"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["3", THROTTLE, "5000000"]
    stage.settings[None] = {"log.retention.ms": "5"}
    assert main(["cluster", "config", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"broker": None, "name": "log.retention.ms", "value": "5"},
        {"broker": 3, "name": THROTTLE, "value": "5000000"},
    ]


def test_help_names_every_setting_that_can_be_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "config", "--help"]) == 0
    _, _, told = capsys.readouterr().out.partition("What can be set")
    named = {word for word in re.split(r"[\s,;:]+", told) if "." in word}
    assert named == broker_settings.NAMES


def test_help_does_not_load_the_broker() -> None:
    modules = modules_after("from penstock.cli.main import main; main(['cluster', 'config', '--help'])")
    assert not modules & {"penstock.cluster.broker_settings", "penstock.cluster.image", "penstock.engine.topic_config"}


# --- rolling restarts

UP = [broker(1), broker(2)]
SECOND = partition("t", 1, [2, 1], min_isr=1)
WHOLE = picture(UP, partition("t", 0, [1, 2], min_isr=1), SECOND)
LED_ELSEWHERE = picture(UP, partition("t", 0, [1, 2], leader=2, epoch=2, min_isr=1), SECOND)
BACK = picture(UP, partition("t", 0, [1, 2], epoch=3, min_isr=1), SECOND)


def noting(file: Path) -> str:
    """A shell, as it starts in no time: it must not outlive a gate of a second on a machine with other work."""
    return f"sh -c 'printf %s \"$0\" >>{file}' {{id}}"


def test_a_broker_is_back_when_it_was_away_and_leads_again(
    staged: Staged, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "restarted"
    away = picture([broker(1, is_up=False), broker(2)], partition("t", 0, [1, 2], leader=2, isr=(2,), epoch=2))
    stage = staged(WHOLE, WHOLE, WHOLE, away, LED_ELSEWHERE, LED_ELSEWHERE, BACK)
    assert main(["cluster", "restart", "--command", noting(file), "--brokers", "1", "--yes"]) == 0
    assert file.read_text() == "1"
    assert stage.deeds == [("elect", [("t", 0)])]
    assert stage.pictures == [BACK]
    assert "broker 1: back and in sync" in capfd.readouterr().err


def test_a_command_that_restarts_nothing_does_not_pass(
    staged: Staged, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    staged(WHOLE)
    words = ["cluster", "restart", "--command", noting(tmp_path / "x"), "--brokers", "1,2", "--yes", "--gate", "1"]
    assert main(words) == 1
    err = capfd.readouterr().err
    assert "broker 1 was not away since the command ran" in err
    assert "go on with --brokers 1,2" in err


def test_nothing_is_restarted_while_the_cluster_is_ill(
    staged: Staged, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "restarted"
    staged(picture(UP, partition("t", 0, [1, 2], isr=(1,), min_isr=1)))
    assert main(["cluster", "restart", "--command", noting(file), "--brokers", "1", "--yes", "--gate", "1"]) == 1
    assert "not whole before broker 1 is restarted" in capfd.readouterr().err
    assert not file.exists()


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("false", 1, "false ended with 1"),
        ("/none/such", 2, "/none/such cannot be run"),
        ("'", 2, "No closing quotation"),
    ],
)
def test_commands_that_fail(
    command: str, code: int, told: str, staged: Staged, capfd: pytest.CaptureFixture[str]
) -> None:
    staged(WHOLE)
    assert main(["cluster", "restart", "--command", command, "--brokers", "2", "--yes"]) == code
    assert told in capfd.readouterr().err


def test_the_controller_comes_last_and_places_are_filled_in(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    staged(WHOLE)
    assert main(["cluster", "restart", "--command", "ssh {host} penstock@{id} {rack}:{port}", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "     2  ssh b penstock@2 r2:9002",
        "     1  ssh b penstock@1 r1:9001",
    ]


AWAY = [broker(1, is_up=False), broker(2)]
DRAINED = [broker(1, cordon="drained"), broker(2)]
LEADS_NOTHING = picture(DRAINED, partition("t", 0, [1, 2], leader=2, min_isr=1))
HOLDS_NOTHING = picture(UP, partition("t", 0, [2], min_isr=1))


def restart(tmp_path: Path, *words: str) -> list[str]:
    return ["cluster", "restart", "--command", noting(tmp_path / "x"), "--brokers", "1", "--yes", *words]


def test_a_broker_that_leads_nothing_has_to_be_seen_away(
    staged: Staged, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    staged(LEADS_NOTHING)
    assert main(restart(tmp_path, "--gate", "1")) == 1
    assert "broker 1 was not away since the command ran" in capfd.readouterr().err
    out_of_sync = picture(DRAINED, partition("t", 0, [1, 2], leader=2, isr=(2,), min_isr=1))
    for seen in (out_of_sync, replace(LEADS_NOTHING, brokers={each.id: each for each in AWAY})):
        staged(LEADS_NOTHING, LEADS_NOTHING, seen, LEADS_NOTHING)
        assert main(restart(tmp_path)) == 0


def test_a_broker_that_holds_nothing_has_to_be_there(
    staged: Staged, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    away = replace(HOLDS_NOTHING, brokers={each.id: each for each in AWAY})
    staged(HOLDS_NOTHING)
    assert main(restart(tmp_path, "-o", "json")) == 0
    told = capfd.readouterr()
    assert json.loads(told.out)["unproven"] == [1]
    assert "broker 1: it runs, and holds nothing, so nobody can tell whether it was away" in told.err
    assert "back and in sync" not in told.err
    staged(HOLDS_NOTHING, HOLDS_NOTHING, away, HOLDS_NOTHING)
    assert main(restart(tmp_path, "-o", "json")) == 0
    told = capfd.readouterr()
    assert json.loads(told.out)["unproven"] == []
    assert "broker 1: back and in sync" in told.err
    staged(HOLDS_NOTHING, HOLDS_NOTHING, away)
    assert main(restart(tmp_path, "--gate", "1")) == 1


def test_a_broker_is_seen_away_while_the_command_runs(
    staged: Staged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = staged(LEADS_NOTHING)
    monkeypatch.setattr("penstock.cli.cluster_restart._LOOK_EVERY_S", 0.01)
    away = replace(LEADS_NOTHING, brokers={each.id: each for each in AWAY})
    done = tmp_path / "done"
    refusals = [CommandError("the server gave no proper answer")]

    def fetch(*, sizes: bool = True, **_: Any) -> Picture:
        if not sizes and started.exists():
            if refusals:
                raise refusals.pop()
            done.touch()
            return away
        return LEADS_NOTHING

    started = tmp_path / "started"
    stage.fetch = fetch  # type: ignore[method-assign]
    program = (
        "import pathlib, time; pathlib.Path({!r}).touch()\nwhile not pathlib.Path({!r}).exists(): time.sleep(0.01)"
    )
    words = shlex.join([sys.executable, "-c", program.format(str(started), str(done))])
    assert main(["cluster", "restart", "--command", words, "--brokers", "1", "--yes", "--gate", "30"]) == 0


def test_a_command_that_does_not_end(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    staged(WHOLE)
    monkeypatch.setattr("penstock.cli.cluster_restart._LOOK_EVERY_S", 0.01)
    begun = time.monotonic()
    assert main(["cluster", "restart", "--command", "sleep 60", "--brokers", "2", "--yes", "--gate", "1"]) == 1
    assert "sleep 60 did not end within 1 s" in capfd.readouterr().err
    assert time.monotonic() - begun < 30


def test_an_election_that_fails_is_tried_again(staged: Staged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [CommandError("no server", code=3), CommandError("leaders cannot be elected")]
    stage = staged(WHOLE, WHOLE, LED_ELSEWHERE)

    def elect(*_: Any) -> tuple[list[Any], dict[Any, str]]:
        if failures:
            raise failures.pop()
        stage.pictures[:] = [BACK]
        return [], {}

    monkeypatch.setattr("penstock.cli.cluster_restart.elect", elect)
    assert main(restart(tmp_path)) == 0
    assert failures == []


def test_nothing_is_restarted_while_the_store_is_away(
    staged: Staged, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    staged(replace(WHOLE, store_answers=False))
    assert main(restart(tmp_path, "--gate", "1")) == 1
    assert "the metadata store (etcd) does not answer" in capfd.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_restart_that_stops_writes_wants_a_word_of_its_own(
    staged: Staged, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def strict(**values: Any) -> Picture:
        return picture(UP, partition("t", 0, [1, 2], **values))

    staged(strict())
    assert main(restart(tmp_path)) == 2
    told = capfd.readouterr().err
    assert "1 partition would be below min.insync.replicas without broker 1: t-0" in told
    assert "--yes-stop-writes" in told
    assert not (tmp_path / "x").exists()
    staged(strict(), strict(), strict(leader=2, epoch=2), strict(epoch=3))
    assert main(restart(tmp_path, "--yes-stop-writes")) == 0


def test_scripts_learn_who_was_restarted_before_it_failed(
    staged: Staged, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    staged(WHOLE, WHOLE, LED_ELSEWHERE, BACK)
    words = ["--brokers", "1,2", "--yes", "--gate", "1", "-o", "json"]
    assert main(["cluster", "restart", "--command", noting(tmp_path / "x"), *words]) == 1
    assert json.loads(capfd.readouterr().out)["restarted"] == [1]
