"""`make cluster`: three brokers to try, with nothing but what the repository brings."""

import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.peers.broker import wait_until
from tests.peers.ports import row_of_ports

from .conftest import PEER

pytestmark = pytest.mark.skipif(PEER != "penstock", reason="Penstock's own script")

SCRIPT = Path(__file__).parents[2] / "scripts" / "cluster"
_SPAN = 43


def test_three_brokers_start_and_stop(tmp_path: Path) -> None:
    first, told = row_of_ports(_SPAN), tmp_path / "told"
    with told.open("wb") as out:
        process = subprocess.Popen(
            [SCRIPT, tmp_path / "data", str(first)], stdout=out, stderr=out, start_new_session=True, cwd=tmp_path
        )
    try:
        wait_until(lambda: told.read_text().count("ready kafka=") == 3, process, "scripts/cluster", told)
        status = re.search(r"penstock (cluster status) --watch --server (\S+)", told.read_text())
        assert status is not None
        command = [SCRIPT.parents[1] / ".venv/bin/penstock", *status[1].split(), "--server", status[2]]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "3 of 3 brokers up" in shown
    finally:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the script and to all it has started
        code = process.wait(60)
    assert code == 0, told.read_text()
    assert len(list(tmp_path.glob("data/[123]/clean-shutdown"))) == 3
    for port in range(first, first + 3):
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(("127.0.0.1", port))
