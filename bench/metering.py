"""What its own metrics cost Penstock: CPU for the same bytes with them and without, two brokers taking turns.

One broker counts and is scraped once a second; the other was started by unmetered.py and is never asked. Passes are
short and alternate, so that what disturbs the machine disturbs both.
"""

import statistics
import sys
import threading
from dataclasses import replace
from pathlib import Path

import httpx

from bench.cells import BASE
from bench.native import HERE
from bench.progress import say
from bench.rows import Row, at_most
from bench.scale import Scale, settle
from bench.subject import Subject, start
from bench.throughput import measure_cell

PASS_MB = 200
PASSES = 10
SCRAPE_S = 1.0

ROWS = [
    Row("metered", "Metrics", "CPU for 1 GB in and out, metrics on and scraped every second", "CPU-s"),
    Row("unmetered", "Metrics", "CPU for 1 GB in and out, metrics off", "CPU-s"),
    Row("metrics-cost", "Metrics", "what metrics add to the CPU", "%", (at_most(3.0, "nothing"),)),
]


class Scraper:
    """Reads /metrics once a second until closed; an error there ends the measurement."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/metrics"
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.scrapes = 0
        self.failure: Exception | None = None
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        with httpx.Client(trust_env=False, timeout=10.0) as client:
            while not self._closing.wait(SCRAPE_S):
                try:
                    client.get(self._url).raise_for_status()
                except httpx.HTTPError as error:
                    self.failure = error
                    return
                self.scrapes += 1


def measure(name: str, directory: Path, scale: Scale) -> dict[str, float]:
    """Only Penstock has figures here."""
    if name != "penstock":
        return {}
    settle(directory, scale.megabytes(PASS_MB))
    metered = start("penstock", directory / "metered")
    try:
        unmetered = start("penstock", directory / "unmetered", launcher=[sys.executable, str(HERE / "unmetered.py")])
        try:
            return _compare(metered, unmetered, scale)
        finally:
            unmetered.stop()
    finally:
        metered.stop()


def _compare(metered: Subject, unmetered: Subject, scale: Scale) -> dict[str, float]:
    cell = replace(BASE, fetch=())
    share = scale.share * PASS_MB / BASE.megabytes
    brokers = {"metered": metered, "unmetered": unmetered}
    used_s: dict[str, list[float]] = {name: [] for name in brokers}
    turns = ("metered", "unmetered", "unmetered", "metered")  # neither is always the one after the other
    scraper = Scraper(metered.http)
    try:
        for number in range(2 + PASSES * 2):
            turn = turns[number % 4]
            cpu_s = measure_cell(brokers[turn], cell, share)["cpu"]
            if number >= 2:  # the first pass of each warms up
                used_s[turn].append(cpu_s)
    finally:
        scraper.close()
    with_s, without_s = (statistics.mean(used_s[name]) for name in brokers)
    cost = (with_s / without_s - 1) * 100
    say(f"penstock: metrics cost {cost:.1f} % of CPU ({scraper.scrapes} scrapes)")
    return {"metered": with_s, "unmetered": without_s, "metrics-cost": cost}
