"""docs/runbook.md is true: every command in it runs or could, and every alert of the rules has its place there."""

import io
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import click
import pytest
import yaml

from penstock.cli.main import main, root
from tests.chaos.load import wait_until
from tests.chaos.transactional_run import BROKER_SETTINGS
from tests.cluster.penstock_cluster import PenstockCluster
from tests.unit.net.certificates import Authority

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "penstock.rules.yml").read_text())
BOX = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(penstock [^`]+)`")
NOTHING_TO_DO = 1
"""What a command says that finds nothing of the kind it was told to end: a move to cancel, a leader to elect."""


def commands() -> list[str]:
    """Of all boxes, in order; each once."""
    return list(dict.fromkeys(line for box in BOX.findall(RUNBOOK) for line in box.splitlines() if line))


def test_the_runbook_has_a_place_for_every_alert() -> None:
    alerts = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]
    headings = re.findall(r"^### (\w+)$", RUNBOOK, re.MULTILINE)
    assert {rule["alert"] for rule in alerts} == {heading for heading in headings if heading.startswith("Penstock")}
    for rule in alerts:
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"


def test_links_within_the_runbook_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", RUNBOOK, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", RUNBOOK)) <= headings


def unknown_words(line: str) -> list[str]:
    """Commands and options that there are none of. Other words stand for names, or are left out in running text."""
    found: click.Command = root
    unknown = []
    for word in shlex.split(line)[1:]:
        if word.startswith("-"):
            known = {name for each in found.params if isinstance(each, click.Option) for name in each.opts}
            unknown += [word] if word.partition("=")[0] not in {*known, "--help"} else []
        elif isinstance(found, click.Group):
            below = found.get_command(click.Context(found), word)
            if below is None:
                return [*unknown, word]
            found = below
    return unknown


def test_commands_in_running_text_exist() -> None:
    lines = INLINE.findall(BOX.sub("", RUNBOOK))
    assert len(lines) > 10
    assert {line: words for line in lines if (words := unknown_words(line))} == {}
    assert unknown_words("penstock context add prod --server b1:9092 --use") == ["--use"]
    assert unknown_words("penstock cluster statsu --watch") == ["statsu"]


@pytest.fixture(scope="module")
def five_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    directory = tmp_path_factory.mktemp("runbook")
    settings = {**BROKER_SETTINGS, "security": {"mode": "watch"}}  # there are users and rules, and everything passes
    with PenstockCluster(directory, brokers=5, members=1, settings=settings) as made:
        made.start()
        yield made


def run(line: str, http: str) -> tuple[int, str]:
    words = shlex.split(line.replace("127.0.0.1:8080", http))
    if words[0] != "penstock":
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr
    said = io.BytesIO()
    text = io.TextIOWrapper(said, write_through=True)  # records are written as bytes
    with redirect_stdout(text), redirect_stderr(text):
        code = main(words[1:])
    return code, said.getvalue().decode()


def are_moving(http: str) -> bool:
    return json.loads(run("penstock cluster reassign --status -o json", http)[1]) != []


def test_every_command_runs(five_brokers: PenstockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SERVER", five_brokers.bootstrap)
    monkeypatch.setenv("HOME", "/nonexistent")
    started_with = list(five_brokers.nodes[1].command)
    http = started_with[started_with.index("--http") + 1]
    assert run("penstock topic create orders --partitions 6 --replication-factor 3", http)[0] == 0
    for line in ("queue create jobs", "queue create orders:billing", "topic create dlq.jobs --replication-factor 3"):
        assert run(f"penstock {line}", http)[0] == 0, line
    assert run("penstock queue send orders:billing --id order-4711 first", http)[0] == 0
    wait_until(lambda: run("penstock cluster check", http)[0] == 0, 60, "a whole cluster")
    assert len(commands()) > 25
    certificate = Authority.make(tmp_path / "ours").sign("broker").certificate
    settings = tmp_path / "1.yaml"
    settings.write_text("node: {id: 1}\n")
    for each in commands():
        line = each.replace("/etc/penstock/broker.pem", certificate).replace("/etc/penstock/1.yaml", str(settings))
        assert line.split()[0] in ("penstock", "curl"), line
        if "cluster elect" in line:  # a broker to which something moves cannot lead it yet
            wait_until(lambda: not are_moving(http), 60, "what moves has arrived")
        code, said = run(line, http)
        is_vain = code == NOTHING_TO_DO and any(word in line for word in ("--cancel", "--unclean"))
        assert code == 0 or is_vain, f"{line}: {code}\n{said}"
