"""The key that secrets are sealed by is replaced, one broker after the other: each can always open every secret."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main

from .conftest import PEER
from .secured_cluster import ADMIN, PASSWORD, SecuredCluster

pytestmark = pytest.mark.skipif(PEER != "penstock", reason="its verbs are ours")
Run = Callable[..., Any]
_DRY_RUN = ("security", "rotate-key", "--dry-run")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SecuredCluster]:
    with SecuredCluster(tmp_path / "cluster") as made:
        made.start()
        yield made


@pytest.fixture
def run(cluster: SecuredCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """What `penstock WORDS...` answers as JSON, asked of one broker first."""
    password = tmp_path / "cli.password"
    password.touch(0o600)
    password.write_text(PASSWORD)
    properties = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": cluster.clients.certificate,
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": ADMIN,
        "sasl.password.file": str(password),
    }
    login = [word for name, value in properties.items() for word in ("-X", f"{name}={value}")]

    def call(broker: int, *words: str, fails: bool = False) -> Any:
        capsys.readouterr()
        code = main([*words, "-o", "json", "--server", cluster.addresses[broker]["secret"], *login])
        out, err = capsys.readouterr()
        assert (code != 0) is fails, err
        return err if fails else json.loads(out)

    return call


def test_a_key_is_replaced_while_brokers_are_restarted(cluster: SecuredCluster, run: Run, tmp_path: Path) -> None:
    new = tmp_path / "new.key"
    assert main(["security", "new-key", str(new)]) == 0

    def look(at: int) -> Any:
        """One more secret, made by that broker; all brokers can open what there is."""
        run(at, "apikey", "create", "--for", ADMIN, "--expires", "1d", "--signing")
        cluster._wait(lambda: not run(at, *_DRY_RUN)["brokers_not_asked"], f"broker {at} knows that all are there")
        told = run(at, *_DRY_RUN)
        assert sorted(each["broker"] for each in told["brokers"]) == [1, 2, 3]
        for each in told["brokers"]:
            assert {key for key, count in told["secrets"].items() if count} <= set(each["opens"]), each
        return told

    def restart_each(**settings: Path) -> None:
        for number, node in cluster.nodes.items():
            node.stop()
            more = {f"PENSTOCK_SECURITY__{name.upper()}": str(path) for name, path in settings.items()}
            node.environment = {**node.environment, **more}
            cluster.start()
            look(number)

    old = {each["seals"] for each in look(1)["brokers"]}
    assert len(old) == 1
    restart_each(other_seal_key_files=new)
    assert {each["seals"] for each in look(2)["brokers"]} == old
    cluster.nodes[3].kill()
    cluster._wait(lambda: cluster.nodes[1].brokers() == {1, 2}, "the others miss broker 3")
    assert "broker 3 does not answer" in run(1, "security", "rotate-key", "--yes", fails=True)
    cluster.start()
    restart_each(seal_key_file=new)
    told = look(3)
    (seals,) = {each["seals"] for each in told["brokers"]}
    assert {seals} != old and told["secrets"][next(iter(old))] > 0
    done = run(2, "security", "rotate-key", "--yes")
    assert (done["by"], done["resealed"], set(done["unused"])) == (seals, told["secrets"][next(iter(old))], old)
    assert {key for key, count in look(1)["secrets"].items() if count} == {seals}
    assert run(1, "security", "check")["brokers_not_asked"] == []
