"""The first user of a broker that asks who somebody is: there before clients are, or the broker does not start."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import WrongSettings
from penstock.security.authentication import Peer, Plain
from penstock.security.secret import Secret
from penstock.server.broker import Broker
from penstock.server.config import Address, Config, Listeners, Security
from penstock.server.doors.table import Stage

FREE = Address("127.0.0.1", 0)
PEER = Peer("127.0.0.1", "kafka")


def broker_of(tmp_path: Path, file: Path | None) -> Broker:
    listeners = Listeners(kafka=FREE, http=FREE, is_named=True, auth={"kafka": ("scram",)})
    return Broker(Config(data_dir=tmp_path / "data", listeners=listeners, security=Security(admin_password_file=file)))


def secret_file(tmp_path: Path, said: bytes) -> Path:
    path = tmp_path / "admin.password"
    path.write_bytes(said)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "said", [b"x" * 1025, b"a\0b", b"\xff", b"", None], ids=["long", "zero", "bytes", "empty", "none"]
)
async def test_a_password_that_is_none_stops_the_start(tmp_path: Path, said: bytes | None) -> None:
    path = secret_file(tmp_path, said) if said is not None else tmp_path / "nothing"
    broker = broker_of(tmp_path, path)
    try:
        with pytest.raises(WrongSettings, match=f"security.admin_password_file: {re.escape(str(path))}: "):
            await broker.start()
        assert broker._doors.of("kafka") == []
    finally:
        await broker.stop()


async def test_the_file_is_needed_for_the_first_start_alone(tmp_path: Path) -> None:
    path = secret_file(tmp_path, b"correct horse")
    for _ in range(2):
        broker = broker_of(tmp_path, path)
        await broker.start()
        guard = broker._house.guard
        assert guard is not None and broker.first_admin_password is None
        assert await guard.authenticator.authenticate(Plain("admin", Secret("correct horse")), PEER)
        await broker.stop()
        path.unlink(missing_ok=True)


async def test_it_is_there_before_clients_can_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = broker_of(tmp_path, None)
    opened, seen = broker._doors.open, {}

    async def watched(stage: Stage) -> None:
        guard = broker._house.guard
        seen[stage] = guard is not None and guard.has_users
        await opened(stage)

    monkeypatch.setattr(broker._doors, "open", watched)
    await broker.start()
    assert broker.first_admin_password is not None
    await broker.stop()
    assert seen == {Stage.FIRST: False, Stage.CLIENTS: True}


def test_a_password_that_was_drawn_is_shown_even_if_the_start_fails_then(tmp_path: Path) -> None:
    """It is drawn once: the next start finds a user, and has nothing to show."""
    config = tmp_path / "broker.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config.write_text(
            f"data_dir: {tmp_path / 'data'}\nlisteners:\n"
            f"- {{protocol: kafka, address: '127.0.0.1:{taken.getsockname()[1]}', auth: scram}}\n"
        )
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "serve", "--config", str(config)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PENSTOCK_CONFIG": ""},
        )
    assert done.returncode != 0 and "cannot be used" in done.stderr
    assert re.search(r"user admin was made, with the password \S{32} which is not shown again", done.stderr)
