"""Health and metrics of a real process, by curl: TLS, logins and certificates, a revoked one, and metrics alone."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.net.tls import TlsFiles
from tests.peers import penstock
from tests.unit.net.certificates import Authority
from tests.unit.net.test_certificates import revoke

pytestmark = pytest.mark.skipif(
    os.environ.get("PENSTOCK_TEST_PEER", "penstock") != "penstock", reason="the listeners are ours"
)
PASSWORD = "correct horse"  # noqa: S105 - of a test's broker
DEADLINE_S = 30.0


class House:
    """A broker whose HTTP listener takes passwords and certificates, and who may come by which."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority.make(directory / "ours")
        server = self.authority.sign("server")
        self.revoked = directory / "crl.pem"
        revoke(self.authority, self.revoked)
        password = directory / "admin.password"
        password.write_text(PASSWORD)
        password.chmod(0o600)
        settings = f"""\
security: {{admin_password_file: {password}, super_users: ["certificate User:watcher"]}}
listeners:
- name: probes
  protocol: http
  address: 127.0.0.1:0
  auth: [basic, certificate]
  tls:
    certificate: {server.certificate}
    key: {server.key}
    authority: {self.authority.certificate}
    revoked: {self.revoked}
    client_auth: request
    names: "RULE:CN=(.*)/$1/L"
"""
        self.broker = penstock.start(directory / "broker", settings=settings, flags=["--metrics", "0"])
        ready = (directory / "broker" / "penstock.stdout").read_text().split()
        self.addresses = dict(word.split("=", 1) for word in ready if "=" in word)

    def ask(self, path: str, *words: str) -> tuple[int, str]:
        """Status and body; 0 where TLS or the connection fails."""
        where = f"https://{self.addresses['probes']}{path}"
        return curl("--cacert", self.authority.certificate, *words, where)

    def showing(self, name: str) -> tuple[str, ...]:
        files = self.authority.sign(name)
        return "--cert", files.certificate, "--key", files.key


def curl(*words: str) -> tuple[int, str]:
    told_last = ("--write-out", "\n%{http_code} %{http_version}")
    plainly = ("--silent", "--max-time", str(DEADLINE_S), "--noproxy", "*")
    done = subprocess.run(["curl", *plainly, *told_last, *words], capture_output=True, text=True, check=False)
    body, _, told = done.stdout.rpartition("\n")
    status, version = told.split()
    assert status == "000" or version == "1.1"
    return int(status), body


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("http"))
    yield made
    assert made.broker.stop() == 0


def test_status_words_are_for_everybody_and_names_for_who_is_known(house: House) -> None:
    assert house.ask("/health/live") == (200, '{"status":"live"}')
    assert house.ask("/health/ready", "--http2") == (200, '{"status":"ready"}')
    assert house.ask("/health")[0] == house.ask("/metrics")[0] == 401
    assert "broker 1" not in house.ask("/")[1] and house.addresses["kafka"] not in house.ask("/")[1]
    known = ("--user", f"admin:{PASSWORD}")
    assert json.loads(house.ask("/health", *known)[1])["insecure"] is False
    assert house.addresses["kafka"] in house.ask("/", *known)[1]
    assert house.ask("/metrics", "--user", "admin:wrong")[0] == 401


def test_metrics_alone_are_for_whoever_can_connect(house: House) -> None:
    where = f"http://{house.addresses['metrics']}"
    status, body = curl(f"{where}/metrics")
    assert status == 200 and 'penstock_security_mode{mode="closed"} 1.0' in body
    assert curl(f"{where}/health")[0] == 200
    assert curl(f"{where}/")[0] == 404
    assert house.addresses["metrics"].startswith("127.0.0.1:")


def test_a_certificate_opens_health_until_it_is_revoked(house: House) -> None:
    watcher = house.showing("Watcher")
    assert house.ask("/metrics", *watcher)[0] == 200
    assert house.ask("/metrics", *house.showing("eve"))[0] == 403
    revoke(house.authority, house.revoked, house.authority.sign("other"))
    house.broker.process.send_signal(signal.SIGHUP)
    assert house.ask("/metrics", *watcher)[0] == 200
    revoke(house.authority, house.revoked, TlsFiles(watcher[1], watcher[3]))
    house.broker.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + DEADLINE_S
    while house.ask("/health/live", *watcher)[0] != 0:
        assert time.monotonic() < deadline, "a revoked certificate opens a connection still"
    assert house.ask("/health/live")[0] == 200
