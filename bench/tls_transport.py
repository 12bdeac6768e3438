"""`python -m bench.tls_transport [OLD] [NEW]`: what TLS costs the side that serves, one commit beside another.

CPU seconds for each GB that a process on `TcpNetwork` sends (a file range) and receives, in plain and under TLS, in
rounds that alternate; then what it keeps for each connection that is idle after it fetched 1 MiB. A commit may be `.`
for the files as they are. The peer, blocking sockets in this process, is not counted.
"""

import argparse
import asyncio
import json
import os
import resource
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[1]
RANGE = 256 << 20
FETCHED = 1 << 20


def serve(directory: str, is_secure: bool) -> None:
    """The process that is measured: `g` and `r` begin sending and receiving, `m` a fetch; lines ask for figures."""
    import uvloop

    from penstock.net.tcp import TcpNetwork
    from penstock.net.tls import TlsFiles
    from penstock.ports.network import Transport
    from penstock.storage.local_disk import LocalDisk

    disk = LocalDisk()
    file = disk.open(f"{directory}/file")

    class Peer:
        def __init__(self) -> None:
            self.buffer = memoryview(bytearray(4096))

        def connected(self, transport: Transport) -> None:
            self.transport = transport

        def get_buffer(self) -> memoryview:
            return self.buffer

        def received(self, size: int) -> None:
            kind = self.buffer[:1].tobytes()
            if kind == b"g":
                self.transport.send_range(file, 0, RANGE)
            elif kind == b"m":
                self.transport.write(b"head")
                self.transport.send_range(file, 0, FETCHED)
            elif kind == b"r" and len(self.buffer) == 4096:
                self.buffer = memoryview(bytearray(256 * 1024))

        def drained(self) -> None: ...

        def disconnected(self) -> None: ...

    async def run() -> None:
        files = TlsFiles(f"{directory}/c.pem", f"{directory}/k.pem")
        tls = files.make_server_context() if is_secure else None
        listener = await TcpNetwork().listen("127.0.0.1", 0, Peer, tls=tls)
        print(listener.address[1], flush=True)
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while await reader.readline():
            print(json.dumps(_spent()), flush=True)

    uvloop.run(run())


def _spent() -> tuple[float, int]:
    """CPU seconds so far, and KiB resident."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, int(Path("/proc/self/statm").read_text().split()[1]) * 4


class Subject:
    """A serving process of one commit."""

    def __init__(self, tree: Path, directory: str, *, is_secure: bool) -> None:
        environment = os.environ | {"PYTHONPATH": f"{tree}/src:{ROOT}"}
        words = [sys.executable, str(Path(__file__).resolve()), "--serve", directory, "--secure" if is_secure else ""]
        self._process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._port = int(self._line())
        self._context = ssl.create_default_context(cafile=f"{directory}/c.pem") if is_secure else None

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def figures(self) -> tuple[float, int]:
        """CPU seconds so far, and KiB resident."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        cpu_s, resident = json.loads(self._line())
        return cpu_s, resident

    def connect(self) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self._port))
        return self._context.wrap_socket(plain, server_hostname="localhost") if self._context is not None else plain

    def send(self) -> float:
        """CPU seconds for each GB that the process sends."""
        with self.connect() as peer:
            before, _ = self.figures()
            peer.sendall(b"g")
            take(peer, RANGE)
            return (self.figures()[0] - before) * 1e9 / RANGE

    def receive(self) -> float:
        piece = b"r" * (1 << 20)
        with self.connect() as peer:
            before, _ = self.figures()
            for _ in range(RANGE >> 20):
                peer.sendall(piece)
            time.sleep(0.2)  # what the kernel holds still
            return (self.figures()[0] - before) * 1e9 / RANGE

    def memory(self, connections: int) -> tuple[float, float]:
        """KiB kept for each connection, after the handshake and after a fetch."""
        with ExitStack() as stack:
            for _ in range(10):  # what the first ones leave in the allocator is of no connection
                fetch(stack.enter_context(self.connect()))
            _, before = self.figures()
            peers = [stack.enter_context(self.connect()) for _ in range(connections)]
            time.sleep(0.5)
            _, opened = self.figures()
            for peer in peers:
                fetch(peer)
            time.sleep(0.5)
            _, after = self.figures()
        return (opened - before) / connections, (after - before) / connections

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def take(peer: socket.socket, size: int) -> None:
    buffer = bytearray(1 << 20)
    while size:
        got = peer.recv_into(buffer, min(len(buffer), size))
        if not got:
            raise ConnectionResetError(f"cut with {size} bytes to come")
        size -= got


def fetch(peer: socket.socket) -> None:
    peer.sendall(b"m")
    take(peer, FETCHED + 4)


def tree_of(commit: str, directory: Path) -> Path:
    """The sources of a commit."""
    if commit == ".":
        return ROOT
    directory.mkdir()
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x"], cwd=directory, input=archive, check=True)
    return directory


def make_files(directory: str) -> None:
    with open(f"{directory}/file", "wb") as file:
        for _ in range(RANGE >> 20):
            file.write(os.urandom(1 << 20))
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost"]
    words = ["openssl", "req", "-x509", *kind, *names, "-keyout", f"{directory}/k.pem", "-out", f"{directory}/c.pem"]
    subprocess.run(words, check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", nargs="?", default="8b57802")
    parser.add_argument("new", nargs="?", default=".")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=500, help="for the memory; 0 leaves that out")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--secure", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args([word for word in sys.argv[1:] if word])
    if asked.serve:
        serve(asked.serve, asked.secure)
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory() as directory:
        make_files(directory)
        trees = [tree_of(commit, Path(directory) / f"tree{at}") for at, commit in enumerate((asked.old, asked.new))]
        print(f"{'CPU s for each GB':22}{'old':>8}{'new':>8}{'ratio':>8}   ({asked.rounds} rounds)")
        for is_secure in (False, True):
            subjects = [Subject(tree, directory, is_secure=is_secure) for tree in trees]
            for deed in ("send", "receive"):
                rounds = [[getattr(subject, deed)() for subject in subjects] for _ in range(asked.rounds)]
                old, new = (statistics.median(column) for column in zip(*rounds, strict=True))
                ratio = statistics.median(new / old for old, new in rounds)
                least, most = (new / old for old, new in (min(rounds, key=_ratio), max(rounds, key=_ratio)))
                row = f"{deed:8}{'TLS' if is_secure else 'plain':14}{old:8.3f}{new:8.3f}{ratio:8.2f}"
                print(f"{row}   ({least:.2f} to {most:.2f})")
            for subject in subjects:
                subject.end()
        if asked.connections:
            print(f"{f'KiB for each of {asked.connections} TLS connections':40}{'opened':>9}{'fetched':>9}")
            for name, tree in zip(("old", "new"), trees, strict=True):
                subject = Subject(tree, directory, is_secure=True)
                opened, fetched = subject.memory(asked.connections)
                subject.end()
                print(f"{name:40}{opened:9.1f}{fetched:9.1f}")


def _ratio(row: list[float]) -> float:
    return row[1] / row[0]


if __name__ == "__main__":
    main()
