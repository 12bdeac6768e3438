"""The unit is one that systemd takes, is shut off from the machine, and leaves a broker the time it needs."""

import configparser
import re
from pathlib import Path

import pytest
import yaml

from penstock.cli.serve import EXIT_REFUSED, PARTITIONS_PER_S, STOP_DEADLINE_S
from penstock.server import broker, config_loading
from penstock.server.config import Config

from .programs import DEPLOY, ROOT, find, run

SYSTEMD = DEPLOY / "systemd"
UNIT = SYSTEMD / "penstock@.service"
# systemd-analyze's measure of what a service could do to the machine: 0 to 10, where a unit that says nothing has 9.6.
_MOST_EXPOSED = 15  # in tenths
# Since systemd 254; before, they are named and ignored.
_NEW_KEYS = {"RestartSteps", "RestartMaxDelaySec"}


class _Unit(configparser.RawConfigParser):
    def __init__(self, text: str) -> None:
        super().__init__(strict=False, comment_prefixes=("#",))
        self.read_string(text)

    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit with a program that is there in the place of the one an operator installs."""
    program = tmp_path / "penstock"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text, times = re.subn(r"^ExecStart=\S+", f"ExecStart={program}", UNIT.read_text(), flags=re.MULTILINE)
    assert times == 1
    unit = tmp_path / "penstock@1.service"
    unit.write_text(text)
    return unit


def test_systemd_takes_every_line(installed: Path) -> None:
    done = run(find("systemd-analyze", comes_with="Debian's systemd"), "verify", "--man=no", installed)
    said = [line for line in done.stdout.splitlines() if installed.name in line]
    unknown = [re.search(r"Unknown key(?: name)? '(\w+)'", line) for line in said]
    assert done.returncode == 0, done.stdout
    assert {found[1] if found else "?" for found in unknown} <= _NEW_KEYS, said


def test_a_misspelt_line_would_be_found(installed: Path) -> None:
    installed.write_text(installed.read_text().replace("ProtectSystem=", "ProtectSytem="))
    done = run(find("systemd-analyze", comes_with="Debian's systemd"), "verify", "--man=no", installed)
    assert "ProtectSytem" in done.stdout


def test_little_of_the_machine_is_in_reach(installed: Path) -> None:
    analyze = find("systemd-analyze", comes_with="Debian's systemd")
    done = run(analyze, "security", "--offline=yes", f"--threshold={_MOST_EXPOSED}", "--no-pager", installed)
    assert done.returncode == 0, done.stdout


def test_a_stop_may_take_as_long_as_a_broker_may() -> None:
    unit = _Unit(UNIT.read_text())
    longest_s = STOP_DEADLINE_S + broker._LEAVE_S + 50_000 / PARTITIONS_PER_S
    assert unit.getint("Service", "TimeoutStopSec") > longest_s
    assert unit.get("Service", "KillMode") == "mixed", "an etcd member of the broker's own would end before it"


def test_a_start_that_failed_is_tried_again_and_wrong_settings_are_not() -> None:
    unit = _Unit(UNIT.read_text())
    assert unit.get("Service", "Restart") == "on-failure"
    assert unit.getint("Service", "RestartPreventExitStatus") == EXIT_REFUSED
    assert unit.getint("Unit", "StartLimitIntervalSec") == 0
    assert unit.getint("Service", "RestartSec") >= 5, "systemd 252 does not back off"


def test_an_id_without_settings_is_refused() -> None:
    unit = _Unit(UNIT.read_text())
    path = unit.get("Unit", "AssertPathExists")
    assert unit.get("Service", "ExecStart").endswith(f" --config {path}")


def _example() -> Config:
    environment = dict(
        line.split("=", 1)
        for line in (SYSTEMD / "penstock.env.example").read_text().splitlines()
        if line and not line.startswith("#")
    )
    told = re.search(r"^Environment=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert told is not None
    from_unit = dict(pair.split("=", 1) for pair in told[1].replace("%S", "/var/lib").replace("%i", "1").split())
    return config_loading.load(file=SYSTEMD / "1.yaml.example", env={**from_unit, **environment})


def test_nothing_is_said_in_plain_and_nobody_is_let_in_unasked() -> None:
    """As the broker itself judges it; of its own accord it would refuse to start."""
    config = _example()
    assert not config.insecure and config.security_mode == "closed"
    kafka, http, internal = config.listeners.listed(in_cluster=True)
    assert kafka.tls is not None and kafka.auth == ("scram",)
    assert http.tls == kafka.tls and http.auth == ("basic", "key")
    assert internal.name == "internal" and config.cluster.tls_cert is not None
    assert config.cluster.store.startswith("etcds://") and config.cluster.etcd_cert is not None
    assert "insecure" not in "".join(path.read_text() for path in SYSTEMD.iterdir()).lower()


def test_the_guide_puts_every_file_where_the_examples_read_it() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    told = "".join((SYSTEMD / name).read_text() for name in ("1.yaml.example", "penstock.env.example"))
    read = set(re.findall(r"(?<==)/etc/penstock/[\w./-]+|(?<=: )/etc/penstock/[\w./-]+\.\w+", told))
    assert len(read) == 10
    put = set(re.findall(r"^install -m 640 -g penstock \S+ (\S+)", page, re.MULTILINE))
    assert read <= put


def test_a_broker_takes_the_examples() -> None:
    config = _example()
    assert config.node.id == 1
    assert config.data_dir == Path("/var/lib/penstock/1")
    assert config.ignored_env == ()
    assert _Unit(UNIT.read_text()).get("Service", "StateDirectory").replace("%i", "1") == "penstock/1"
    assert yaml.safe_load((SYSTEMD / "1.yaml.example").read_text())["node"]["rack"] == config.node.rack


def test_prometheus_reaches_the_example() -> None:
    told = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    ports = {target.rpartition(":")[2] for target in told["scrape_configs"][0]["static_configs"][0]["targets"]}
    http = config_loading.load(file=SYSTEMD / "1.yaml.example", env={}).listeners.http
    assert {str(http.port)} == ports
    assert not http.host.startswith("127."), "Prometheus is on another machine"


@pytest.mark.parametrize("page", ["docs/runbook.md", "docs/cluster.md", "docs/deploy.md"])
def test_the_command_of_a_rolling_restart_reaches_the_brokers_machine(page: str) -> None:
    commands = re.findall(r"cluster restart .*?--command '([^']*systemctl[^']*)'", (ROOT / page).read_text())
    assert commands
    assert set(commands) == {"ssh {host} systemctl restart penstock@{id}"}


def test_the_user_is_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    done = run(
        find("systemd-sysusers", comes_with="Debian's systemd"),
        f"--root={tmp_path}",
        SYSTEMD / "penstock.sysusers.conf",
    )
    assert done.returncode == 0, done.stdout
    name, _, number, _, _, home, shell = (tmp_path / "etc" / "passwd").read_text().strip().split(":")
    assert (name, home, shell) == ("penstock", "/var/lib/penstock", "/usr/sbin/nologin")
    assert 0 < int(number) < 1000
