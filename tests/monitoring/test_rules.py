"""The alert rules: right by promtool, evaluated by a real Prometheus on real brokers, and raised when a broker dies."""

import re
import subprocess
from typing import Any

import pytest
import yaml

from tests.cluster.penstock_cluster import PenstockCluster
from tests.monitoring.conftest import DEPLOY, RULES, http_of
from tests.monitoring.expressions import names_in, selectors_in
from tests.monitoring.prometheus import Prometheus

RUNBOOK = (DEPLOY.parent / "docs" / "runbook.md").read_text()
SEVERITIES = {"critical", "warning", "info"}
_GROUPS = yaml.safe_load(RULES.read_text())["groups"]
EVERY_RULE: list[dict[str, Any]] = [rule for group in _GROUPS for rule in group["rules"]]
ALERTS = [rule for rule in EVERY_RULE if "alert" in rule]


def _promtool(*arguments: str) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_are_right() -> None:
    _promtool("check", "rules", RULES.name)


def test_example_configuration_is_right() -> None:
    _promtool("check", "config", "prometheus.yml")


def test_alerts_fire_when_they_should() -> None:
    _promtool("test", "rules", "penstock.rules.test.yml")


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in SEVERITIES
    assert rule["annotations"]["summary"] and rule["annotations"]["description"]
    assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
    assert f"### {rule['alert']}\n" in RUNBOOK, "the page it points to has no such section"


def test_alert_names_are_unique() -> None:
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)


def test_brokers_are_scraped_and_every_rule_is_evaluated(prometheus: Prometheus) -> None:
    def is_scraped() -> bool:
        return [target["health"] for target in prometheus.ask("targets")["activeTargets"]] == ["up"] * 3

    prometheus.until(is_scraped, "all targets are up")
    prometheus.until(lambda: all(rule["health"] != "unknown" for rule in prometheus.rules()), "rules are evaluated")
    assert len(prometheus.rules()) == len(EVERY_RULE)
    assert {rule["name"]: rule.get("lastError") for rule in prometheus.rules() if rule["health"] != "ok"} == {}


def test_every_series_a_rule_asks_for_is_there(prometheus: Prometheus) -> None:
    """Names and labels: one that is misspelt would never raise an alert."""
    wanted = {selector for rule in EVERY_RULE for selector in selectors_in(rule["expr"])}
    assert len(wanted) > 30
    for selector in sorted(wanted):
        prometheus.until(lambda selector=selector: bool(prometheus.query(selector)), f"there is {selector}")  # type: ignore[misc]


def test_a_healthy_cluster_raises_nothing_that_is_urgent(prometheus: Prometheus) -> None:
    prometheus.until(lambda: all(rule["health"] == "ok" for rule in prometheus.rules()), "rules are evaluated")
    urgent = {rule["alert"] for rule in ALERTS if rule["labels"]["severity"] == "critical"}
    urgent.discard("PenstockDiskNearlyFull")  # the disk is whatever machine this runs on

    def is_calm() -> bool:
        return not urgent & set(prometheus.alerts())

    prometheus.until(is_calm, f"no urgent alert: {prometheus.alerts()}")


def test_a_killed_broker_raises_its_alerts(cluster: PenstockCluster, prometheus: Prometheus) -> None:
    prometheus.until(lambda: len(prometheus.query("up == 1")) == 3, "all brokers are scraped")
    victim = cluster.nodes[3]
    try:
        victim.kill()
        expected = {"PenstockBrokerDown", "PenstockBrokerMissing", "PenstockUnderReplicated"}
        prometheus.until(lambda: expected <= set(prometheus.alerts()), f"{expected} are pending")
        down = [
            each for each in prometheus.ask("alerts")["alerts"] if each["labels"]["alertname"] == "PenstockBrokerDown"
        ]
        assert [each["labels"]["instance"] for each in down] == [http_of(victim)]
    finally:
        cluster.start()
    prometheus.until(lambda: not expected & set(prometheus.alerts()), "they are over when the broker is back")


def test_expressions_are_taken_apart() -> None:
    expression = 'sum by (job) (rate(penstock_a_total{x="penstock_no"}[5m])) > 0 and on (job) job:penstock_b:max == 0'
    assert selectors_in(expression) == {'penstock_a_total{x="penstock_no"}', "job:penstock_b:max"}
    assert names_in(expression) == {"penstock_a_total", "job:penstock_b:max"}
    assert selectors_in('up{job=~"penstock.*"} == 0') == {'up{job=~"penstock.*"}'}
    assert not re.search("penstock", " ".join(names_in("sum(up)")))
