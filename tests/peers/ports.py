"""Ports for servers that have to be told one: each claimed by one process of this machine until that process ends.

A port that is free when asked about may be taken before its server binds it: by another run of the tests that chose
the same number, by the next server of the same cluster, or by a connection's own end. So a claim is a lock on one byte
of a file all runs share, and the numbers lie below the ones the kernel hands out by itself: a client that keeps
knocking at a dead broker's door is never given that very port.
"""

import errno
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

_FIRST = 10_000
_TRIES = 1_000
_claimed: set[int] = set()
_chance = random.SystemRandom()  # Runs that seed the other one alike would all try the same ports.
_claims: int | None = None


def free_port() -> int:
    """One port."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """As many ports, none of them ever given twice."""
    ports: list[int] = []
    for _ in range(_TRIES * count):
        if len(ports) == count:
            return ports
        if claim(port := _chance.randrange(_FIRST, _first_ephemeral())):
            ports.append(port)
    raise OSError(errno.EADDRNOTAVAIL, f"no free port from {_FIRST} to {_first_ephemeral()}")


def row_of_ports(count: int) -> int:
    """The first of as many ports in a row."""
    for _ in range(_TRIES):
        first = _chance.randrange(_FIRST, _first_ephemeral() - count)
        if all(claim(port) for port in range(first, first + count)):
            return first
    raise OSError(errno.EADDRNOTAVAIL, f"no {count} free ports in a row")


def claim(port: int) -> bool:
    """Take this port for the rest of this process, unless somebody has it."""
    global _claims
    if port in _claimed:
        return False
    if _claims is None:
        path = Path(tempfile.gettempdir()) / f"penstock-ports-of-{os.getuid()}"
        _claims = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(_claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):
        return False
    _claimed.add(port)
    return _is_free(port)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As servers do: old connections hinder nobody.
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _first_ephemeral() -> int:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return max(first, _FIRST + 2_000)
