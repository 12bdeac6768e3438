"""`penstock cluster status`, `check`, `brokers`, `topics`: what is wrong is found, named, and told by exit codes."""

import json
from dataclasses import replace

import pytest

from penstock.cli.cluster_health import blockers, examine, outages, problems
from penstock.cli.cluster_view import Partition, Picture
from penstock.cli.main import main

from .cluster_pictures import Staged, broker, partition, picture, staged

__all__ = ["staged"]

BROKERS = [broker(1), broker(2), broker(3)]
WELL = picture(BROKERS, partition("t", 0, [1, 2, 3]), partition("t", 1, [2, 3, 1]), sizes={("t", 0): 2048})


def kinds(found: Picture) -> list[str]:
    return [each.kind for each in examine(found)]


def test_a_healthy_cluster_has_nothing_to_say() -> None:
    assert examine(WELL) == []


@pytest.mark.parametrize(
    ("seen", "kind", "told"),
    [
        (
            picture([broker(1), broker(2, is_up=False)], partition("t", 0, [2, 1], leader=-1, isr=(2,), min_isr=1)),
            "no-leader",
            "1 partition without a leader: t-0",
        ),
        (
            picture(BROKERS, partition("t", 0, [1, 2, 3], isr=(1,))),
            "below-min-isr",
            "acks=all waits: t-0",
        ),
        (
            picture([broker(1), broker(2, is_up=False)], partition("t", 0, [1, 2], isr=(1,), min_isr=1)),
            "broker-down",
            "broker 2 is not running; it holds 1 replica",
        ),
        (replace(picture([broker(1)]), store_answers=False), "store-away", "a broker that stops cannot start"),
        (replace(picture([broker(1)]), controller=-1), "no-controller", "there is no controller"),
        (picture([broker(1), broker(2, answers=False)]), "broker-silent", "broker 2 does not answer at b:9002"),
        (
            picture([broker(1, refusals="broker 1 refuses broker 2"), broker(2)]),
            "refused",
            "broker 1 refuses broker 2",
        ),
        (
            picture(BROKERS, *(partition("t", at, [1, 2, 3], isr=(1, 2)) for at in range(5))),
            "under-replicated",
            "5 partitions under-replicated (broker 3 not in sync): t-0, t-1, t-2, …",
        ),
    ],
)
def test_what_is_wrong_is_found(seen: Picture, kind: str, told: str) -> None:
    (found,) = [each for each in problems(seen) if each.kind == kind]
    assert told in found.text
    assert found.next_step


@pytest.mark.parametrize(
    ("seen", "kind", "step"),
    [
        (
            picture(BROKERS, partition("t", 0, [3, 1, 2], isr=(1, 2), leader=1, adding=(3,), min_isr=1)),
            "moving",
            "--status",
        ),
        (picture([broker(1, cordon="cordoned")], partition("t", 0, [1], min_isr=1)), "cordon", "uncordon 1"),
        (picture([broker(1, cordon="drained")], partition("t", 0, [1], min_isr=1)), "cordon", "drain 1 --undo"),
        (picture([broker(1), broker(2, cordon="cordoned")]), "empty", "decommission 2"),
        (picture([broker(1), broker(2, is_up=False)]), "broker-away", "start it, or have it forgotten: 'penstock"),
        (picture([broker(1), broker(2, is_up=False, cordon="cordoned")]), "broker-away", "decommission 2"),
        (picture([broker(1, throttle=5), broker(2, throttle=5)]), "throttle", "--broker 1,2 --unset"),
        (picture([broker(1, free_bytes=10)]), "disk-tight", "balance --by disk"),
        (picture(BROKERS, partition("t", 0, [1, 2, 3], leader=2)), "strayed", "cluster elect"),
    ],
)
def test_what_is_worth_knowing_is_no_problem(seen: Picture, kind: str, step: str) -> None:
    (found,) = examine(seen)
    assert (found.kind, found.is_problem) == (kind, False)
    assert step in found.next_step


def test_without_the_store_nothing_is_advised_that_costs_data() -> None:
    """Whoever is not registered may run; the store is the one thing to see to."""
    brokers = [broker(1), broker(2, is_up=False), broker(3, is_up=False), broker(4, is_up=False)]
    lost = partition("t", 0, [2, 3], leader=-1, isr=(2,))
    seen = picture(brokers, lost, partition("t", 1, [1, 2, 3], isr=(1,)))
    steps = " ".join(each.next_step for each in examine(seen))
    assert all(word in steps for word in ("elect --unclean", "replace", "lost for good", "decommission"))
    found = examine(replace(seen, store_answers=False))
    assert found[0].kind == "store-away"
    assert {each.kind for each in found} >= {"no-leader", "below-min-isr", "broker-down", "under-replicated"}
    told = " ".join(each.text + each.next_step for each in found)
    assert not [word for word in ("unclean", "replace", "lost", "decommission", "is not running;") if word in told]
    assert "broker 2 is not registered, and may run all the same; it holds 2 replicas" in told


def test_a_drained_broker_need_not_lead() -> None:
    seen = picture([broker(1, cordon="drained"), broker(2)], partition("t", 0, [1, 2], leader=2))
    assert kinds(seen) == ["cordon"]


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (partition("t", 0, [4, 1, 2], isr=(1, 2), adding=(4,), removing=(2,)), (1, 2)),
        (partition("t", 0, [1, 2, 4], isr=(1, 2), removing=(4,)), (1, 2)),
        (partition("t", 0, [1, 2]), (1, 2)),
    ],
)
def test_a_move_on_its_way_or_taken_back_is_not_under_replicated(one: Partition, expected: tuple[int, ...]) -> None:
    assert one.expected == expected
    assert not one.is_behind
    assert not one.is_below_min


def test_whether_a_broker_can_be_stopped() -> None:
    assert blockers(WELL, 1) == []
    short = picture(BROKERS, partition("t", 0, [1, 2, 3], isr=(1, 2)), partition("u", 0, [1], min_isr=1))
    assert [each.kind for each in blockers(short, 1)] == ["no-leader", "below-min-isr"]
    assert blockers(short, 3) == []


def test_no_broker_may_be_stopped_while_nobody_is_in_charge(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    for ill in (replace(WELL, store_answers=False), replace(WELL, controller=-1)):
        staged(ill)
        assert main(["cluster", "check", "--stopping", "1"]) == 1
    assert "etcd" in capsys.readouterr().out


def test_what_stops_even_when_all_are_in_sync() -> None:
    short = picture(BROKERS, partition("t", 0, [1, 2, 3], isr=(1, 2)), partition("u", 0, [1, 2], isr=(1,)))
    (found,) = outages(short, 1)
    assert (found.kind, found.text) == (
        "below-min-isr",
        "1 partition would be below min.insync.replicas without broker 1: u-0",
    )


def test_a_silent_broker_is_not_called_up(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    staged(picture([broker(1), broker(2, answers=False)]))
    assert main(["cluster", "brokers"]) == 0
    assert [line.split()[3] for line in capsys.readouterr().out.splitlines()[1:]] == ["up", "SILENT"]
    assert main(["cluster", "status", "-o", "json"]) == 0
    assert [each["answers"] for each in json.loads(capsys.readouterr().out)["brokers"]] == [True, False]


def test_check_tells_by_its_exit_code(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    staged(WELL)
    assert main(["cluster", "check"]) == 0
    assert capsys.readouterr().out == "healthy\n"
    staged(picture(BROKERS, partition("t", 0, [1, 2, 3], isr=(1, 2))))
    assert main(["cluster", "check", "-o", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["healthy"]
    assert [each["kind"] for each in told["problems"]] == ["under-replicated"]
    assert main(["cluster", "check", "--stopping", "7"]) == 1
    assert "broker 7 is unknown; there are 1, 2, 3" in capsys.readouterr().err


def test_check_tells_of_a_broker_that_is_down_and_holds_nothing(
    staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    staged(picture([*BROKERS, broker(4, is_up=False)], *WELL.partitions))
    assert main(["cluster", "check"]) == 0
    told = capsys.readouterr()
    assert told.out == "healthy\n"
    assert "broker 4 is not running, and holds nothing; start it, or have it forgotten" in told.err


def test_check_waits_for_health(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    ill = picture(BROKERS, partition("t", 0, [1, 2, 3], isr=(1, 2)))
    staged(ill, ill, WELL)
    assert main(["cluster", "check", "--wait", "60"]) == 0
    assert capsys.readouterr().out == "healthy\n"


def test_nobody_there_is_another_exit_code(closed_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "check", "--server", f"127.0.0.1:{closed_port}"]) == 3
    assert "no server at" in capsys.readouterr().err


def test_status_on_one_screen(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    away = broker(3, is_up=False, answers=False, host="", port=0, rack=None, disk_bytes=0, cordon="cordoned")
    staged(picture([broker(1), broker(2), away], partition("t", 0, [1, 2, 3], isr=(1, 2)), sizes={("t", 0): 2048}))
    assert main(["cluster", "status"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "cluster c: NOT HEALTHY · 2 of 3 brokers up · 1 partition · controller 1"
    assert out[1].split() == ["BROKER", "ADDRESS", "RACK", "STATE", "LEADERS", "REPLICAS", "BYTES", "DISK", "CORDON"]
    assert out[2].split() == ["1*", "b:9001", "r1", "up", "1", "1", "2.0", "KiB", "50%"]
    assert out[4].split() == ["3", "-", "-", "DOWN", "0", "1", "-", "-", "cordoned"]
    assert len({line.index(word) for line, word in ((out[1], "STATE"), (out[2], "up"), (out[4], "DOWN"))}) == 1
    assert out[5] == "✗ broker 3 is not running; it holds 1 replica"
    assert out[6] == "  → start it; if it is lost for good: 'penstock cluster replace 3 NEW'"


def test_a_throttle_is_shown_where_there_is_one(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    staged(picture([broker(1), broker(2, throttle=5 * 2**20)]))
    assert main(["cluster", "brokers"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split()[-1] == "THROTTLE"
    assert out[2].endswith("5.0 MiB/s")
    staged(WELL)
    assert main(["cluster", "brokers"]) == 0
    assert "THROTTLE" not in capsys.readouterr().out


def test_topics_and_only_those_in_trouble(staged: Staged, capsys: pytest.CaptureFixture[str]) -> None:
    staged(picture(BROKERS, partition("good", 0, [1, 2, 3]), partition("ill", 0, [1, 2, 3], isr=(1, 2))))
    assert main(["cluster", "topics", "-o", "json"]) == 0
    assert [row["topic"] for row in json.loads(capsys.readouterr().out)] == ["good", "ill"]
    assert main(["cluster", "topics", "--troubled", "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["topic"], row["under_replicated"], row["below_min_isr"], row["replication"]) == ("ill", 1, 0, 3)
    staged(picture(BROKERS))
    assert (main(["cluster", "topics"]), main(["cluster", "topics", "--troubled"])) == (0, 0)
    told = "no topics; 'penstock topic create NAME' makes one\nno topics like that\n"
    assert capsys.readouterr() == ("", told)


def test_a_word_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "statsu"]) == 2
    assert "did you mean status?" in capsys.readouterr().err
