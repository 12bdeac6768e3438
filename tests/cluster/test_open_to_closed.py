"""docs/open-to-closed.md: typed line by line while clients write and read; only the addresses are others."""

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.peers.broker import BrokerError
from tests.peers.ports import free_port

from .cluster_process import Node
from .conftest import PEER
from .penstock_cluster import PenstockCluster
from .steady_load import GONE, SteadyLoad

pytestmark = pytest.mark.skipif(PEER != "penstock", reason="its users are ours")
GUIDE = Path(__file__).parents[2] / "docs" / "open-to-closed.md"
TOPIC, PARTITIONS = "orders", 3
DEADLINE_S = 60
_BLOCK = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SSH = """\
#!/bin/sh
for number; do :; done
number=${number##*@}
touch restart-$number
while [ ! -e restarted-$number ]; do sleep 0.05; done
rm restarted-$number
"""


class Place:
    """A directory in which lines are typed, and three brokers with the files of the page."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = {(number, port): free_port() for number in (1, 2, 3) for port in (9092, 9093)}
        self.failures: list[str] = []
        self.cluster = PenstockCluster(directory / "cluster", members=1)
        for number, node in self.cluster.nodes.items():
            words = list(node.command)
            at = words.index("--kafka")
            del words[at : at + 2]
            words[words.index("--config") + 1] = str(self.file(number))
            node.command, node.bootstrap = words, f"127.0.0.1:{self.ports[number, 9092]}"
        commands = {
            "penstock": f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m penstock.cli.main "$@"\n',
            "ssh": _SSH,
        }
        for name, text in commands.items():
            program = directory / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(text)
            program.chmod(0o755)
        env = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
        self._env = env | {"HOME": str(directory), "PATH": f"{directory / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def file(self, number: int) -> Path:
        return self.directory / f"penstock-{number}.yaml"

    def moved(self, text: str, broker: int = 1) -> str:
        """Addresses of three machines, and of a broker's own, are those of three brokers on this one."""
        for (number, port), ours in self.ports.items():
            text = text.replace(f"10.0.0.{number}:{port}", f"127.0.0.1:{ours}")
        text = text.replace("127.0.0.1:9092", f"127.0.0.1:{self.ports[broker, 9092]}")
        return re.sub(r"10\.0\.0\.\d", "127.0.0.1", text)

    def write_settings(self, shown: str) -> None:
        """The page has the file of broker 1."""
        for number in self.cluster.nodes:
            own = shown.replace("10.0.0.1", f"10.0.0.{number}").replace("broker-1.", f"broker-{number}.")
            self.file(number).write_text(self.moved(own, number))

    def type(self, line: str, *, is_refused: bool) -> None:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", self.moved(line)],
            cwd=self.directory,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert not self.failures
        assert (done.returncode != 0) == is_refused, f"{line}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr

    def is_sound(self, shown: str) -> bool:
        """Whether a broker would start with the file as the page has it, on a machine of its own."""
        file = self.directory / "shown.yaml"
        file.write_text(shown)
        command = [sys.executable, "-m", "penstock.cli.main", "config", "check", str(file)]
        return subprocess.run(command, capture_output=True, check=False, env=self._env).returncode == 0

    @contextmanager
    def restarts(self) -> Iterator[None]:
        """What `ssh` asks for is done."""
        is_over = threading.Event()

        def serve() -> None:
            while not is_over.wait(0.02):
                for number, node in self.cluster.nodes.items():
                    asked = self.directory / f"restart-{number}"
                    if asked.exists():
                        asked.unlink()
                        self._restart(node)
                        (self.directory / f"restarted-{number}").touch()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _restart(self, node: Node) -> None:
        try:
            node.stop()
            node.start()
        except BrokerError as error:
            self.failures.append(str(error))


def properties(text: str, directory: Path) -> dict[str, str]:
    """As a program gives them to librdkafka."""
    found = dict(line.split("=", 1) for line in text.splitlines())
    found["sasl.password"] = (directory / found.pop("sasl.password.file")).read_text().strip()
    found["ssl.ca.location"] = str(directory / found["ssl.ca.location"])
    return found


def test_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    monkeypatch.chdir(tmp_path)  # where brokers find what their files name
    (_, _, before), *steps = _BLOCK.findall(GUIDE.read_text())
    with place.cluster as cluster, place.restarts(), ExitStack() as closing:
        place.write_settings(before)
        cluster.start()
        cluster.create_topic(TOPIC, PARTITIONS)
        load = SteadyLoad({"bootstrap.servers": cluster.bootstrap}, TOPIC, PARTITIONS, name="old", passing=GONE)
        closing.enter_context(load).wait_for_acks(100)
        for language, mark, body in steps:
            if language == "yaml":
                assert place.is_sound(body)
                assert place.is_sound(body.replace("insecure: true\n", "")) == ("# closed" in body)
                place.write_settings(body)
            elif language == "sh":
                for line in body.splitlines():
                    place.type(line, is_refused=mark == "refused")
            else:  # the client moves
                settings = properties(place.moved(body), tmp_path)
                moved = SteadyLoad(settings, TOPIC, PARTITIONS, name="billing-moved", passing=GONE)
                closing.enter_context(moved).wait_for_acks(100)
                assert load.finish() > 200
                load.close()
                load = moved
        load.wait_for_acks(100)
        assert load.finish() > 200
    assert [node.starts for node in place.cluster.nodes.values()] == [4, 4, 4]
    assert [mark for _, mark, _ in steps].count("refused") > 0
