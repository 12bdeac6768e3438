"""`tests.peers.ports`: two runs of the tests never give the same port to two servers."""

import socket
import subprocess
import sys

from tests.peers import ports


def test_no_port_is_given_twice() -> None:
    given = ports.free_ports(300)
    assert len(set(given)) == 300


def test_another_process_is_refused_what_this_one_has() -> None:
    port = ports.free_port()
    script = f"from tests.peers import ports; print(ports.claim({port}))"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == "False\n"


def test_a_port_in_use_is_not_given() -> None:
    first = ports.row_of_ports(1)
    with socket.create_server(("127.0.0.1", first)):
        ports._claimed.discard(first)
        assert not ports.claim(first)
    ports._claimed.discard(first)
    assert ports.claim(first)
