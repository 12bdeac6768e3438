"""A member of etcd that the broker starts itself and looks after, for clusters without services beside them.

The member is a process that lives no longer than the broker: the kernel ends it when the broker is gone, however that
happens. One that dies is started again on its data. What it has on disk is etcd's and is never removed from here: a
member that comes back without its data is refused by the others, and rightly so, as it has forgotten what it promised.
"""

import asyncio
import os
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from penstock import obstacles
from penstock.cluster.metadata.etcd import DEFAULT_PORT, Tls, version_of
from penstock.errors import WrongSettings
from penstock.observe.logs import get_logger

DEFAULT_PEER_PORT = 2380
OLDEST = (3, 6)
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0
_SETTLED_AFTER_S = 30.0
_STOP_WITHIN_S = 10.0
_SHOWN_LINES = 5
_CHUNK_BYTES = 65536
_OPTIONS = (
    "--initial-cluster-token=penstock",
    # Brokers that lag further behind than this look at everything anew.
    "--auto-compaction-mode=periodic",
    "--auto-compaction-retention=10m",
    "--quota-backend-bytes=8589934592",
    # Ours stay below the usual 128; a later release's may not, while this one's member is still there.
    "--max-txn-ops=512",
)
# A forked child of a process with threads has no safe moment to run Python in, so a program in between asks the kernel
# (PR_SET_PDEATHSIG is 1), and then becomes etcd. A group of its own: an interrupt at the terminal is for the broker.
_LAUNCH = """
import ctypes, os, signal, sys
os.setpgid(0, 0)
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the broker is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""
_log = get_logger("cluster.etcd")


class MemberAddress(NamedTuple):
    """Where the member beside a broker is: `1@host:2379:2380` in `cluster.members`, which are also the usual ports."""

    node_id: int
    host: str
    client_port: int = DEFAULT_PORT
    peer_port: int = DEFAULT_PEER_PORT

    def __str__(self) -> str:
        return f"{self.node_id}@{self.host}:{self.client_port}:{self.peer_port}"

    @classmethod
    def parse(cls, text: str) -> "MemberAddress":
        """Raises WrongSettings."""
        node, at, rest = text.partition("@")
        host, bracket, ports = rest.rpartition("]")  # of an IPv6 address
        if bracket:
            host += bracket
        else:
            host, _, ports = rest.partition(":")
        numbers = ports.lstrip(":").split(":") if ports else []
        well_formed = node.isdecimal() and at and host and len(numbers) <= 2
        if not well_formed or not all(port.isdecimal() and 0 < int(port) < 65536 for port in numbers):
            raise WrongSettings(f"cluster.members: {text!r} is not node-id@host:client-port:peer-port")
        return cls(int(node), host, *map(int, numbers))


def parse_members(texts: Sequence[str]) -> list[MemberAddress]:
    """The value of `cluster.members`, the same for every broker. Raises WrongSettings."""
    members = [MemberAddress.parse(text) for text in texts]
    seen: set[str] = set()
    for member in members:
        names = {
            f"node {member.node_id}",
            *(f"{member.host}:{port}" for port in (member.client_port, member.peer_port)),
        }
        if len(names) < 3 or names & seen:
            raise WrongSettings(f"cluster.members: a node id or an address of {member} is there twice")
        seen |= names
    if len(members) % 2 == 0:
        _log.warning("an odd number of etcd members survives as much as one more", members=len(members))
    return members


def url_of(members: Sequence[MemberAddress], *, first: int, is_secure: bool = False) -> str:
    """What to give to `EtcdStore.open`; node `first` is asked before the others, if it is a member."""
    ordered = sorted(members, key=lambda member: (member.node_id != first, member.node_id))
    return f"{'etcds' if is_secure else 'etcd'}://{','.join(f'{m.host}:{m.client_port}' for m in ordered)}"


class EtcdMember:
    """The member of one broker. `start` it, `close` it.

    Args:
        node_id: the broker's; one of `members`.
        directory: where etcd keeps everything.
        program: etcd's; looked for in PATH if it is empty.
        listen: the address to listen at, if it is not the one that the member's host stands for.
        tls: for clients and the other members alike; all of them must show certificates of the authority.
        joins: the cluster is there already, and an operator has announced this member (`etcdctl member add`).
        arguments: more of etcd's own.
    """

    def __init__(
        self,
        node_id: int,
        members: Sequence[MemberAddress],
        directory: str,
        *,
        program: str = "",
        listen: str = "",
        tls: Tls | None = None,
        joins: bool = False,
        arguments: Sequence[str] = (),
    ) -> None:
        self._self = next(member for member in members if member.node_id == node_id)
        self._members = members
        self._directory = directory
        self._program = program
        self._listen = listen
        self._tls = tls
        self._joins = joins
        self._arguments = arguments
        self._process: Process | None = None
        self._supervision: asyncio.Task[None] | None = None
        self._last_lines: deque[str] = deque(maxlen=_SHOWN_LINES)

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the process; it answers a while later, when a majority of the members runs.

        Raises:
            WrongSettings: there is no etcd, it is too old, its directory cannot be made, or a file is not named.
            StartupError: there is no room for its directory.
        """
        if self._tls is not None and not all(self._tls):
            raise WrongSettings("an etcd member with TLS needs an authority, a certificate and its key, all three")
        self._program = await _find(self._program)
        try:
            os.makedirs(self._directory, 0o700, exist_ok=True)
        except OSError as error:
            told = obstacles.tell_path(error, "--data-dir")
            raise obstacles.refusal(f"etcd's directory cannot be made: {told}", error) from error
        self._supervision = asyncio.get_running_loop().create_task(self._supervise())

    async def close(self) -> None:
        """Stop the process, after it has handed over what it led."""
        if self._supervision is None:
            return
        supervision, self._supervision = self._supervision, None
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_WITHIN_S):
                    await process.wait()
        supervision.cancel()
        await asyncio.gather(supervision, return_exceptions=True)

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s = loop.time()
            try:
                ending = f"it ended with {await self._run()}"
            except OSError as error:
                ending = str(error)
            if self._supervision is None:
                return
            if loop.time() - began_s > _SETTLED_AFTER_S:
                pause_s = _FIRST_PAUSE_S
            _log.warning("etcd stopped", reason=ending, again_in_s=pause_s, said="\n".join(self._last_lines))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _run(self) -> int:
        """One life of the process; how it ended."""
        command = [self._program, *await self._options(), *self._arguments]
        self._last_lines.clear()
        process = self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid())),
            *command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            # Settings meant for another etcd would change ours.
            env={name: value for name, value in os.environ.items() if not name.startswith("ETCD_")},
        )
        _log.info("etcd started", pid=process.pid, directory=self._directory, peer_port=self._self.peer_port)
        try:
            await self._log_lines(process)
            return await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            self._process = None

    async def _log_lines(self, process: Process) -> None:
        assert process.stdout is not None
        rest = b""
        while chunk := await process.stdout.read(_CHUNK_BYTES):
            # Without an end in sight, a line is cut: nobody reads that far.
            *lines, rest = (rest + chunk).split(b"\n") if len(rest) < _CHUNK_BYTES else (rest, chunk)
            for line in lines:
                text = line.decode(errors="replace")
                self._last_lines.append(text)
                _log.debug("etcd says", line=text)

    async def _options(self) -> list[str]:
        scheme = "http" if self._tls is None else "https"
        member = self._self
        listen = self._listen or await _address_of(member.host)
        cluster = ",".join(f"node-{m.node_id}={scheme}://{m.host}:{m.peer_port}" for m in self._members)
        options = [
            f"--name=node-{member.node_id}",
            f"--data-dir={self._directory}",
            f"--listen-client-urls={scheme}://{listen}:{member.client_port}",
            f"--advertise-client-urls={scheme}://{member.host}:{member.client_port}",
            f"--listen-peer-urls={scheme}://{listen}:{member.peer_port}",
            f"--initial-advertise-peer-urls={scheme}://{member.host}:{member.peer_port}",
            f"--initial-cluster={cluster}",
            f"--initial-cluster-state={'existing' if self._joins else 'new'}",
            *_OPTIONS,
        ]
        if self._tls is not None:
            authority, certificate, key = self._tls
            for side in ("", "peer-"):
                options += [f"--{side}cert-file={certificate}", f"--{side}key-file={key}"]
                options += [f"--{side}trusted-ca-file={authority}", f"--{side}client-cert-auth"]
        return options


async def _find(program: str) -> str:
    """The path of an etcd that is new enough."""
    path = shutil.which(program or "etcd")
    wanted = ".".join(map(str, OLDEST))
    way_out = (
        f"Install etcd {wanted} or later and name it with cluster.etcd_program, or use an etcd that runs elsewhere"
    )
    if path is None:
        raise WrongSettings(
            f"no program {program or 'etcd'} that could be run{'' if program else ' in PATH'}. {way_out}."
        )
    try:
        process = await asyncio.create_subprocess_exec(path, "--version", stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
        said = (await process.communicate())[0].decode(errors="replace")
    except OSError as error:
        raise obstacles.refusal(f"{path} cannot be run: {error.strerror}. {way_out}.", error) from error
    first = said.partition("\n")[0]
    version = version_of(first.removeprefix("etcd Version: "))
    if not version:
        raise WrongSettings(f"{path} does not say which etcd it is ({first!r}). {way_out}.")
    if version < OLDEST:
        raise WrongSettings(f"{path} is etcd {'.'.join(map(str, version))}, which is too old. {way_out}.")
    return path


async def _address_of(host: str) -> str:
    """etcd listens at addresses, never at names. Looked up at each start: a name may come after the process."""
    found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), None)
    address = str(found[0][4][0])
    return f"[{address}]" if ":" in address else address


def directory_in(data: str) -> str:
    """Where the member of a broker with this data directory keeps its files."""
    return os.path.join(data, "meta", "etcd")
