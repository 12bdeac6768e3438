"""`python -m bench.tls`: what TLS and logins cost a broker, Penstock beside Apache Kafka under the same cipher.

Rounds alternate between the two, each on an empty directory, warmed first. For each: MB/s written and read through
librdkafka under TLS, the broker's CPU seconds for a GB each way, its CPU milliseconds for a login by SCRAM-SHA-256
(handshake of SASL and both steps, on a connection of its own, in plain), and what stays in its memory for each idle TLS
connection that has asked for the versions of APIs. `held` is how many of those are still open in the end. Clients are
not counted.
"""

import argparse
import base64
import hashlib
import hmac
import json
import resource
import secrets
import shutil
import socket
import ssl
import statistics
import struct
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path

from tests.peers.broker import BrokerError

from bench import machine
from bench.cells import Cell
from bench.native import NativeError
from bench.progress import say
from bench.secured import PASSWORD, USER, Secured, load, start_secured
from bench.subject import BROKERS

CELL = Cell("tls", "librdkafka", 1024, 6, "1", "page cache", 400)
WARM_PASSES = {"penstock": 1, "kafka": 10}
WARM_SHARE = 0.5
WARM_LOGINS = 500
_SETTLED_S = 1.0
_API_VERSIONS, _HANDSHAKE, _AUTHENTICATE = 18, 17, 36
ROWS = {
    "produce": ("written under TLS", "MB/s"),
    "consume": ("read under TLS", "MB/s"),
    "cpu-produce": ("broker CPU for a GB written", "s"),
    "cpu-consume": ("broker CPU for a GB read", "s"),
    "login-ms": ("broker CPU for a SCRAM login", "ms"),
    "idle-kib": ("memory for each idle TLS connection", "KiB"),
    "held": ("idle TLS connections held", ""),
}


def request(peer: socket.socket, api: int, version: int, body: bytes = b"") -> bytes:
    """One request with the oldest header; what the answer has behind its correlation id."""
    frame = struct.pack(">hhih", api, version, 1, 5) + b"bench" + body
    peer.sendall(struct.pack(">i", len(frame)) + frame)
    (size,) = struct.unpack(">i", take(peer, 4))
    return take(peer, size)[4:]


def take(peer: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = peer.recv(size - len(found))
        if not piece:
            raise ConnectionResetError(f"cut with {size - len(found)} bytes to come")
        found += piece
    return found


def log_in(address: str) -> None:
    """By SCRAM-SHA-256, on a connection that ends then."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as peer:
        mechanism = b"SCRAM-SHA-256"
        answer = request(peer, _HANDSHAKE, 1, struct.pack(">h", len(mechanism)) + mechanism)
        assert answer[:2] == b"\0\0", f"SaslHandshake: {answer!r}"
        bare = f"n={USER},r={secrets.token_hex(16)}"
        told = authenticate(peer, f"n,,{bare}".encode()).decode()
        fields = dict(part.split("=", 1) for part in told.split(","))
        salted = salt(base64.b64decode(fields["s"]), int(fields["i"]))
        head = f"c=biws,r={fields['r']}"
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        signature = hmac.digest(hashlib.sha256(client_key).digest(), f"{bare},{told},{head}".encode(), "sha256")
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        authenticate(peer, f"{head},p={base64.b64encode(proof).decode()}".encode())


@lru_cache(maxsize=4)
def salt(value: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), value, iterations)


def authenticate(peer: socket.socket, said: bytes) -> bytes:
    answer = request(peer, _AUTHENTICATE, 1, struct.pack(">i", len(said)) + said)
    code, size = struct.unpack_from(">hh", answer)
    assert code == 0, f"SaslAuthenticate: error {code}"
    at = 4 + max(size, 0)
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + size]


def measure_logins(made: Secured, count: int) -> float:
    """The broker's CPU milliseconds for each."""
    for _ in range(min(WARM_LOGINS, count)):
        log_in(made.logins)
    before_s = made.subject.cpu_s()
    for _ in range(count):
        log_in(made.logins)
    return (made.subject.cpu_s() - before_s) * 1000 / count


def measure_idle(made: Secured, count: int) -> tuple[float, int]:
    """KiB resident for each of so many idle connections, and how many are held."""
    with ExitStack() as stack:
        for _ in range(10):  # what the first ones leave in the allocator is of no connection
            open_idle(made, stack)
    time.sleep(_SETTLED_S)
    before, peers = made.subject.rss_mb(), list[ssl.SSLSocket]()
    with ExitStack() as stack:
        for _ in range(count):
            try:
                peers.append(open_idle(made, stack))
            except OSError as error:
                say(f"{made.subject.name}: no more than {len(peers)} connections: {error}")
                break
        time.sleep(_SETTLED_S)
        after = made.subject.rss_mb()
        held = sum(is_open(peer) for peer in peers)
    return (after - before) * 1e6 / 1024 / max(len(peers), 1), held


def open_idle(made: Secured, stack: ExitStack) -> ssl.SSLSocket:
    peer = stack.enter_context(made.connect())
    request(peer, _API_VERSIONS, 0)
    return peer


def is_open(peer: ssl.SSLSocket) -> bool:
    peer.setblocking(False)
    try:
        return bool(peer.recv(1))
    except ssl.SSLWantReadError:
        return True
    except OSError:
        return False


def measure(name: str, directory: Path, asked: argparse.Namespace) -> dict[str, float]:
    made = start_secured(name, directory / name)
    try:
        share = asked.mb / CELL.megabytes
        for _ in range(WARM_PASSES[name]):
            load(made, made.tls, made.tls_properties(), CELL, share * WARM_SHARE)
        figures = load(made, made.tls, made.tls_properties(), CELL, share)
        figures["login-ms"] = measure_logins(made, asked.logins)
        if asked.connections:
            figures["idle-kib"], figures["held"] = measure_idle(made, asked.connections)
        return figures
    finally:
        made.subject.stop()


def table(rounds: list[dict[str, dict[str, float]]]) -> str:
    """Medians of the rounds, and of their ratios."""
    names = list(rounds[0])
    lines = [f"{'':38}" + "".join(f"{name:>12}" for name in names) + f"{'ratio':>9}"]
    for key, (title, unit) in ROWS.items():
        columns = [[found[name][key] for found in rounds if key in found[name]] for name in names]
        if not all(columns):
            continue
        figures = "".join(f"{statistics.median(column):12.3f}" for column in columns)
        ratio = ""
        if len(columns) == 2 and all(columns[1]):
            ratio = f"{statistics.median(ours / theirs for ours, theirs in zip(*columns, strict=True)):9.2f}"
        lines.append(f"{title + (f', {unit}' if unit else ''):38}{figures}{ratio}")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.tls", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--brokers", nargs="+", choices=BROKERS, default=list(BROKERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mb", type=int, default=1000, help="of values each way in each round (default %(default)s)")
    parser.add_argument("--logins", type=int, default=2000)
    parser.add_argument("--connections", type=int, default=5000, help="idle ones; 0 leaves that out")
    parser.add_argument("--quick", action="store_true", help="as little as shows that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where every figure of every round goes")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="for the data (default %(default)s)")
    asked = parser.parse_args()
    if asked.quick:
        asked.rounds, asked.mb, asked.logins, asked.connections = 1, 20, 50, 50
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    rounds: list[dict[str, dict[str, float]]] = []
    directory = Path(tempfile.mkdtemp(prefix="tls-", dir=asked.directory))
    try:
        for number in range(asked.rounds):
            found = {}
            for name in asked.brokers:
                found[name] = measure(name, directory, asked)
                say(f"round {number + 1} of {asked.rounds}: {name}: {json.dumps(found[name])}")
            rounds.append(found)
    except (BrokerError, NativeError) as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    sys.stdout.write(table(rounds))
    if asked.json:
        facts = {"command": " ".join(["python -m bench.tls", *sys.argv[1:]]), "machine": machine.facts(asked.directory)}
        asked.json.write_text(json.dumps({**facts, "rounds": rounds}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
