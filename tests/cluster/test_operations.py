"""`penstock cluster` on real brokers, while a producer writes: nothing acknowledged is lost, whatever an operator does.

Four brokers and replicas on three of them, so that there is always somewhere to go.
"""

import io
import json
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from penstock.cli.main import main
from tests.chaos.history import History, report
from tests.chaos.load import ProducerLoad, read_everything, wait_until
from tests.chaos.transactional_run import BROKER_SETTINGS
from tests.cluster.penstock_cluster import PenstockCluster
from tests.peers.penstock import command

PARTITIONS = 4
BALLAST_BYTES = 8_000_000
CAREFUL = {"max.in.flight.requests.per.connection": 1, "socket.timeout.ms": 5000, "request.timeout.ms": 5000}
_TIMEOUT_S = 60

pytestmark = pytest.mark.slow


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    directory = tmp_path_factory.mktemp("operations")
    with PenstockCluster(directory, brokers=4, members=1, settings=BROKER_SETTINGS) as made:
        made.start()
        yield made


@pytest.fixture
def cluster(started: PenstockCluster, monkeypatch: pytest.MonkeyPatch) -> PenstockCluster:
    """Four live brokers that take replicas, whatever an earlier test left."""
    monkeypatch.setenv("PENSTOCK_SERVER", started.bootstrap)
    monkeypatch.setenv("HOME", "/nonexistent")
    started.start()
    for broker in ask("brokers"):
        if broker["cordon"]:
            run("uncordon", str(broker["broker"]))
    return started


class Command:
    """`penstock cluster WORDS...` in a thread of this process; `said` is what it has told so far beside its answer."""

    def __init__(self, *words: str) -> None:
        self._words = ["cluster", *words]
        self._out, self._err = io.StringIO(), io.StringIO()
        self._code = -1
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with redirect_stdout(self._out), redirect_stderr(self._err):
            self._code = main(self._words)

    @property
    def said(self) -> str:
        return self._err.getvalue()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def finish(self) -> Result:
        self._thread.join(_TIMEOUT_S)
        assert not self.is_running, f"{self._words} does not end\n{self._out.getvalue()}\n{self.said}"
        return Result(self._code, self._out.getvalue(), self.said)


def run(*words: str) -> Result:
    done = Command(*words).finish()
    assert done.code == 0, f"{words}: {done}"
    return done


def ask(*words: str) -> Any:
    return json.loads(run(*words, "-o", "json").out)


@contextmanager
def written(cluster: PenstockCluster, topic: str) -> Iterator[ProducerLoad]:
    """A topic that is written to all the time; afterwards every acknowledged record is there once."""
    cluster.create_topic(topic, PARTITIONS, cluster.smallest_segments)
    history = History()
    with ProducerLoad(
        cluster.bootstrap, topic, PARTITIONS, history, value_bytes=200, window=10, config=CAREFUL
    ) as load:
        load.wait_for_acks(100, _TIMEOUT_S)
        yield load
        load.wait_for_acks(100, _TIMEOUT_S)
        load.settle(_TIMEOUT_S)
    assert load.failed == []
    violations = history.check(read_everything(cluster.bootstrap, topic, PARTITIONS))
    assert not violations, report(violations)


def put_ballast(cluster: PenstockCluster, topic: str, size_bytes: int = BALLAST_BYTES) -> None:
    """Bytes to move, in two partitions."""
    cluster.create_topic(topic, 2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": "none", "log_level": 3})
    for number in range(size_bytes // 100_000):
        producer.produce(topic, bytes(100_000), partition=number % 2)
    assert producer.flush(_TIMEOUT_S) == 0


def holders(cluster: PenstockCluster, topic: str) -> list[set[int]]:
    view = cluster.live[0].view(topic)
    return [set(view[index].replicas) for index in sorted(view)]


def wait_holders(cluster: PenstockCluster, topic: str, expected: list[set[int]]) -> None:
    """A command is told by one broker that partitions have moved; the one asked here may hear of it a moment later."""
    wait_until(lambda: holders(cluster, topic) == expected, _TIMEOUT_S, f"{topic} on {expected}")


def wait_gone(cluster: PenstockCluster, topic: str, broker: int) -> None:
    wait_until(lambda: all(broker not in each for each in holders(cluster, topic)), _TIMEOUT_S, f"{broker} is empty")


def elsewhere(cluster: PenstockCluster, topic: str) -> list[int]:
    """Three brokers, of which one does not hold partition 0 of a topic yet."""
    held = holders(cluster, topic)[0]
    return [*sorted(held)[:2], *({1, 2, 3, 4} - held)]


def test_partitions_move_slowly_turn_back_and_arrive(cluster: PenstockCluster) -> None:
    put_ballast(cluster, "ballast-move")
    with written(cluster, "move") as load:
        before = holders(cluster, "ballast-move")
        target = elsewhere(cluster, "ballast-move")
        words = ["--topics", "ballast-move", "--to", ",".join(map(str, target))]
        plan = ask("reassign", *words, "--dry-run")
        assert plan["status"] == "dry-run"
        assert holders(cluster, "ballast-move") == before

        ask("reassign", *words, "--throttle", "400KB", "--no-wait", "--yes")
        seen: list[Any] = []

        def is_on_its_way() -> bool:
            seen[:] = ask("reassign", "--status")
            return all(0 < row["copied_bytes"] < row["total_bytes"] for row in seen) and bool(seen)

        wait_until(is_on_its_way, _TIMEOUT_S, "some bytes copied")
        assert run("check", "--wait", "60").out == "healthy\n"
        assert "░" in run("reassign", "--status").out
        taken_back = ask("reassign", "--cancel", "--yes")
        assert len(taken_back["cancelled"]) == len(seen)
        wait_holders(cluster, "ballast-move", before)
        slowed = [each["broker"] for each in ask("brokers") if each["throttle"]]
        assert set(slowed) <= set(target)
        listed = ",".join(map(str, slowed))
        run("config", "--broker", listed, "--unset", "follower.replication.throttled.rate")

        moved = ask("reassign", *words, "--throttle", "1GB", "--yes")
        assert moved["status"] == "moved"
        wait_holders(cluster, "ballast-move", [set(target)] * 2)
        wait_until(lambda: not any(each["throttle"] for each in ask("brokers")), _TIMEOUT_S, "no throttles left")
        run("reassign", "--topics", "move", "--to", ",".join(map(str, target)), "--yes")
        wait_holders(cluster, "move", [set(target)] * PARTITIONS)
        load.wait_for_acks(100, _TIMEOUT_S)


def test_a_drained_broker_leads_nothing_until_it_may_again(cluster: PenstockCluster) -> None:
    with written(cluster, "drain") as load:
        victim = cluster.leader("drain", 0)
        assert run("drain", str(victim)).out == f"broker {victim} leads nothing\n"
        cluster.wait_moved(victim, "drain")  # others may hear of it a moment later
        assert run("check", "--wait", "60").code == 0
        load.wait_for_acks(100, _TIMEOUT_S)
        run("drain", str(victim), "--undo")
        cluster.wait_whole("drain")
        run("elect")

        def is_as_planned() -> bool:
            return all(each.leader == each.replicas[0] for each in cluster.nodes[victim].view("drain").values())

        wait_until(is_as_planned, _TIMEOUT_S, "who should lead does")


def test_a_decommissioned_broker_is_empty_and_forgotten(cluster: PenstockCluster) -> None:
    with written(cluster, "leave"):
        leaving = Command("decommission", "4", "--yes", "-o", "json")
        wait_until(lambda: "stop it now" in leaving.said or not leaving.is_running, _TIMEOUT_S, "broker 4 is empty")
        wait_gone(cluster, "leave", 4)
        assert leaving.is_running
        assert cluster.nodes[4].stop() == 0
        assert json.loads(leaving.finish().out)["status"] == "forgotten"
        wait_until(
            lambda: [each["broker"] for each in ask("brokers")] == [1, 2, 3], _TIMEOUT_S, "all have forgotten it"
        )
        assert run("check", "--wait", "60").code == 0
    cluster.lose_disk(4)
    cluster.start()


def test_an_empty_broker_gets_its_share(cluster: PenstockCluster) -> None:
    put_ballast(cluster, "ballast-share")
    with written(cluster, "share"):
        run("reassign", "--topics", "ballast-share", "--to", "1,2,3", "--yes")
        before = {each["broker"]: each["bytes"] for each in ask("brokers")}
        plan = ask("balance", "--yes")
        assert plan["status"] == "moved"
        after = {each["broker"]: each["after"]["size_bytes"] for each in plan["brokers"]}
        assert max(after.values()) < max(before.values())
        assert after[4] > before[4]
        wait_until(lambda: any(4 in each for each in holders(cluster, "ballast-share")), _TIMEOUT_S, "4 has a share")
        assert ask("balance", "--by", "leaders", "--yes")["status"] in ("moved", "nothing")
        by_cpu = ask("balance", "--by", "cpu", "--over", "2", "--yes")
        assert by_cpu["status"] in ("moved", "nothing") and by_cpu["copied_bytes"] == 0
        assert all(each["before"]["cpu"] > 0 for each in by_cpu["brokers"])


def test_a_broker_whose_disk_is_lost(cluster: PenstockCluster) -> None:
    """Under the same id with an empty disk it comes back by itself; under another one, `replace` is the way."""
    with written(cluster, "lost") as load:
        cluster.lose_disk(2)
        assert Command("check").finish().code == 1
        cluster.nodes[2].start()
        cluster.wait_whole("lost")
        assert json.loads(run("check", "--wait", "60", "-o", "json").out)["healthy"]

        cluster.lose_disk(3)
        cluster.wait_moved(3, "lost")
        told = Command("check", "-o", "json").finish()
        assert told.code == 1
        assert "penstock cluster replace 3 NEW" in told.out
        assert ask("replace", "3", "4", "--yes")["status"] == "forgotten"
        wait_gone(cluster, "lost", 3)
        assert run("check", "--wait", "60").out == "healthy\n"
        load.wait_for_acks(100, _TIMEOUT_S)
    cluster.nodes[3].start()
    cluster.start()


def restart_all(cluster: PenstockCluster, *words: str) -> Result:
    """`penstock cluster restart` with a command that has us restart a broker.

    Brokers die with the thread that has started them, so it is this one that does.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        program = f"import socket, sys; peer = socket.create_connection(('127.0.0.1', {listener.getsockname()[1]})); "
        program += "peer.sendall(sys.argv[1].encode()); sys.exit(int(peer.recv(16)))"
        restart = shlex.join([sys.executable, "-c", program, "{id}"])
        arguments = [*command(), "cluster", "restart", "--command", restart, *words]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            while process.poll() is None:
                with suppress(TimeoutError):
                    peer, _ = listener.accept()
                    with peer:
                        node = cluster.nodes[int(peer.recv(16))]
                        code = node.stop()
                        node.start()
                        peer.sendall(str(code).encode())
            assert process.stdout is not None
            assert process.stderr is not None
            return Result(process.returncode, process.stdout.read(), process.stderr.read())


def test_a_rolling_restart(cluster: PenstockCluster) -> None:
    starts = {each: node.starts for each, node in cluster.nodes.items()}
    with written(cluster, "roll"):
        done = restart_all(cluster, "--brokers", "1,2", "--yes", "-o", "json")
        assert done.code == 0, done
        assert json.loads(done.out)["restarted"] == [1, 2]
        assert {each: node.starts - starts[each] for each, node in cluster.nodes.items()} == {1: 1, 2: 1, 3: 0, 4: 0}

        def is_as_planned() -> bool:
            view = cluster.nodes[1].view("roll")
            return all(each.is_whole and each.leader == each.replicas[0] for each in view.values())

        wait_until(is_as_planned, _TIMEOUT_S, "all in sync, and led by who should")
