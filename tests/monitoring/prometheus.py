"""A real Prometheus as a child process: it scrapes the brokers it is given, and goes by the rules it is given."""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.peers.ports import free_port

_READY_S = 60.0
_POLL_S = 0.1
_EVERY = "1s"


class PrometheusError(Exception):
    """It did not do what it was told; the text ends with its last words."""


class Prometheus:
    """Use as a context manager.

    Args:
        targets: `host:port` of what is scraped, under the job `penstock`.
        rules: files of rules.
    """

    def __init__(self, directory: Path, targets: Sequence[str], rules: Sequence[Path]) -> None:
        directory.mkdir(parents=True)
        config = {
            "global": {"scrape_interval": _EVERY, "scrape_timeout": _EVERY, "evaluation_interval": _EVERY},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [{"job_name": "penstock", "static_configs": [{"targets": list(targets)}]}],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._log = directory / "prometheus.log"
        self._address = f"127.0.0.1:{free_port()}"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "--", "prometheus"),
                    f"--config.file={directory / 'prometheus.yml'}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address={self._address}",
                    "--log.level=warn",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> "Prometheus":
        try:
            self.until(lambda: self._answers(), "Prometheus answers")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API. Raises PrometheusError with what it says is wrong."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                body = json.load(answer)
        except urllib.error.HTTPError as error:
            raise PrometheusError(f"{parameters}: {error.read().decode()}") from error
        return body["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an expression is now: series, or one without labels for a number."""
        data = self.ask("query", query=expression)
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"]}]
        found: list[dict[str, Any]] = data["result"]
        return found

    def names(self) -> set[str]:
        return set(self.ask("label/__name__/values"))

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]

    def alerts(self) -> dict[str, set[str]]:
        """The states, pending or firing, of alerts by name."""
        found: dict[str, set[str]] = {}
        for alert in self.ask("alerts")["alerts"]:
            found.setdefault(alert["labels"]["alertname"], set()).add(alert["state"])
        return found

    def until(self, met: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _READY_S
        while not met():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise PrometheusError(f"not within {_READY_S:.0f} s: {what}\n{self._log.read_text()[-2000:]}")
            time.sleep(_POLL_S)
