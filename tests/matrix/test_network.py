"""Packets that are to be lost are lost, all others arrive; and what a dead run left is swept away."""

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.matrix import network
from tests.matrix.namespaces import CLIENT, PREFIX, Namespaces, address, sweep, why_not
from tests.matrix.network import ETCD_PORT, INTERNAL_PORT, KAFKA_PORT, Drop, Network

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
WAIT_S = 0.4


@pytest.fixture
def namespaces(tmp_path: Path) -> Iterator[Namespaces]:
    with Namespaces(2, tmp_path.name.replace("_", "")[-12:]) as made:
        yield made


def reaches(namespaces: Namespaces, source: int, target: int, port: int) -> bool:
    """Whether a connection from one machine to a port of another comes about."""
    listening = threading.Event()
    servers: list[socket.socket] = []

    def listen() -> None:
        with namespaces.inside(target):
            servers.append(socket.create_server((address(target), port)))
        listening.set()

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert listening.is_set()
    try:
        with namespaces.inside(source):
            socket.create_connection((address(target), port), WAIT_S).close()
    except TimeoutError:
        return False
    finally:
        servers[0].close()
    return True


@pytest.mark.parametrize(
    ("drops", "cut", "kept"),
    [
        (network.both_ways(1, 2), [(1, 2, KAFKA_PORT), (2, 1, KAFKA_PORT)], [(CLIENT, 1, KAFKA_PORT)]),
        (network.brokers_apart(1, 2), [(1, 2, INTERNAL_PORT), (2, 1, INTERNAL_PORT)], [(1, 2, ETCD_PORT)]),
        (network.cut_from_etcd(1), [(1, 2, ETCD_PORT), (1, 1, ETCD_PORT)], [(2, 1, ETCD_PORT), (1, 2, INTERNAL_PORT)]),
        (network.deaf_to_etcd(1), [(1, 2, ETCD_PORT)], [(2, 1, ETCD_PORT)]),
        (network.cut_from_clients(1), [(CLIENT, 1, KAFKA_PORT)], [(CLIENT, 2, KAFKA_PORT), (2, 1, KAFKA_PORT)]),
        (network.answers_lost(1), [(CLIENT, 1, KAFKA_PORT)], [(CLIENT, 2, KAFKA_PORT)]),
    ],
    ids=["both ways", "brokers", "etcd", "deaf to etcd", "clients", "answers"],
)
def test_a_cut_takes_what_it_names_and_nothing_else(
    namespaces: Namespaces, drops: list[Drop], cut: list[tuple[int, int, int]], kept: list[tuple[int, int, int]]
) -> None:
    lines = Network(namespaces)
    lines.heal()
    assert all(reaches(namespaces, *each) for each in (*cut, *kept))
    lines.drop(drops)
    assert not any(reaches(namespaces, *each) for each in cut)
    assert all(reaches(namespaces, *each) for each in kept)
    assert lines.counted() > 0
    lines.heal()
    assert all(reaches(namespaces, *each) for each in cut)


def test_loss_takes_a_share(namespaces: Namespaces) -> None:
    Network(namespaces).drop(network.loss(1, 50))
    with namespaces.inside(1):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind((address(1), KAFKA_PORT))
    with receiver, namespaces.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(400):
            sender.sendto(b"x", (address(1), KAFKA_PORT))
        receiver.setblocking(False)
        arrived = 0
        with contextlib.suppress(BlockingIOError):
            while receiver.recv(1):
                arrived += 1
    assert 100 < arrived < 300


def test_what_a_dead_run_left_is_swept_and_what_lives_is_not(namespaces: Namespaces) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = f"{PREFIX}-{dead.pid}-left-1"
    subprocess.run(["ip", "netns", "add", left], check=True)
    sweep()
    names = os.listdir("/run/netns")
    assert left not in names
    assert namespaces.name(1) in names


def test_a_thread_comes_back_from_where_it_was(namespaces: Namespaces) -> None:
    before = os.readlink("/proc/thread-self/ns/net")
    with namespaces.inside(1):
        assert os.readlink("/proc/thread-self/ns/net") != before
    assert os.readlink("/proc/thread-self/ns/net") == before
