"""The driver's process: it holds the lock, answers health and metrics, opens Spark and looks after what is wanted.

It ends by SIGTERM or SIGINT (every run finishes its micro-batch; what is wanted stays, for the next driver), or when
nothing has run for a while. When the JVM dies under it the process begins again from its own command line: every run
has lost its session, and a new one is better had in a new process.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.observe import logs
from penstock.pipelines.driver.engine import Engine
from penstock.pipelines.driver.presence import DEFAULT_HTTP, DEFAULT_MASTER, Driver, Presence, trim_log
from penstock.pipelines.driver.reconciler import Reconciler, refuse_wanted
from penstock.pipelines.errors import Busy, Misconfigured, PipelineError
from penstock.pipelines.home import Home, default_home
from penstock.pipelines.home.status import now_ms

IDLE_S: Final = 600.0
EXIT_MISCONFIGURED: Final = 2
"""What it was told cannot be, such as a port that another process has."""
_LOOK_EVERY_S: Final = 0.1
_CHECK_EVERY_S: Final = 2.0
_SHORTEST_LIFE_S: Final = 10.0  # of an engine; one that dies sooner would die again

_log = logs.get_logger("pipelines.driver")


def main(arguments: Sequence[str], open_engine: Callable[[str], Engine]) -> int:
    """Be the driver until the end; the result is the exit code.

    Args:
        open_engine: by the master; raises `PipelineError`.
    """
    given = _parse(arguments)
    logs.configure()
    home = Home(given.home)
    presence = Presence(home)
    stopping = _Stopping()
    stopping.hear_signals()
    try:
        with presence.held():
            lost = _Life(home, presence, given, stopping).live(open_engine)
    except Busy as error:
        _log.error("not needed", reason=error)
        return 1
    except PipelineError as error:
        _log.error("the driver cannot go on", reason=error)
        return EXIT_MISCONFIGURED if isinstance(error, Misconfigured) else 1
    if lost:
        _log.warning("begins again")
        logs.flush()
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - this very command
    return 0


class _Life:
    """One driver, with the lock."""

    def __init__(self, home: Home, presence: Presence, given: argparse.Namespace, stopping: "_Stopping") -> None:
        self._home = home
        self._presence = presence
        self._given = given
        self._stopping = stopping
        self._engine: Engine | None = None
        self._reconciler: Reconciler | None = None

    def live(self, open_engine: Callable[[str], Engine]) -> bool:
        """Whether the engine was lost, and another life shall follow."""
        from penstock.pipelines.http import HttpServer, create_app, parse_address

        after_crash = self._presence.was_left()
        app = create_app(
            lambda: self._reconciler.statuses() if self._reconciler else [],
            not_ready=lambda: [] if self._engine else ["Spark is starting"],
        )
        server = HttpServer(*parse_address(self._given.http), app)
        server.start()
        try:
            driver = Driver(os.getpid(), server.address, self._given.master, now_ms())
            self._presence.save(driver)
            _log.info("driver up", home=self._home.path, http=server.address, master=self._given.master)
            lost = self._work(open_engine, after_crash=after_crash)
            if not lost:
                self._presence.clear()
        finally:
            server.stop()
        return lost

    def _work(self, open_engine: Callable[[str], Engine], *, after_crash: bool) -> bool:
        master = self._given.master
        try:
            engine = self._engine = open_engine(master)
        except Exception as error:
            self._presence.clear()  # first: who sees the refusal may ask for another driver at once
            refuse_wanted(self._home, master, f"the driver has no Spark: {error}")
            if isinstance(error, PipelineError):
                raise
            raise PipelineError(str(error)) from error
        self._stopping.hear_signals()  # pyspark takes SIGINT for itself
        self._reconciler = Reconciler(self._home, engine.make_run, master=master, after_crash=after_crash)
        began_s = time.monotonic()
        if self._loop(self._reconciler, engine):
            _log.info("driver stops", at_work=len(self._reconciler.at_work()))
            self._end(self._reconciler, engine)
            return False
        if time.monotonic() - began_s < _SHORTEST_LIFE_S:
            reason = "Spark's JVM died soon after its start; 'penstock pipeline logs --driver' may tell why"
            self._presence.clear()
            refuse_wanted(self._home, master, reason)
            raise PipelineError(reason)
        _log.error("Spark's JVM has died")
        return True

    def _loop(self, reconciler: Reconciler, engine: Engine) -> bool:
        """Until the end; False if that is the engine's."""
        busy_s = checked_s = time.monotonic()
        while not self._stopping.asked:
            reconciler.look()
            now_s = time.monotonic()
            if reconciler.at_work():
                busy_s = now_s
            elif now_s - busy_s >= self._given.idle:
                _log.info("nothing has run for a while", idle_s=self._given.idle)
                return True
            if now_s - checked_s >= _CHECK_EVERY_S:
                checked_s = now_s
                if not engine.is_alive():
                    return False
                self._trim_log()
            time.sleep(_LOOK_EVERY_S)
        return True

    def _end(self, reconciler: Reconciler, engine: Engine) -> None:
        """However long the micro-batches at work take: whoever has no time for that has SIGKILL, which is safe too."""
        reconciler.stop()
        while reconciler.at_work() and engine.is_alive():
            time.sleep(_LOOK_EVERY_S)
        try:
            engine.close()
        except Exception as error:  # noqa: BLE001 - nothing is lost by it any more
            _log.warning("Spark did not close in order", reason=error)

    def _trim_log(self) -> None:
        """Only where our output is that file: somebody else's supervisor has its own ways."""
        with suppress(OSError):
            if os.path.samestat(os.fstat(sys.stderr.fileno()), os.stat(self._presence.log)):
                trim_log(self._presence.log)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.pipelines.driver",
        description="Run the pipelines that are wanted, in one Spark session.",
    )
    parser.add_argument("--home", type=Path, default=default_home(), help="where pipelines keep their state")
    parser.add_argument("--master", default=DEFAULT_MASTER, help="Spark's master (default: %(default)s)")
    parser.add_argument("--http", default=DEFAULT_HTTP, help="HOST:PORT of health and metrics (default: %(default)s)")
    parser.add_argument(
        "--idle", type=float, default=IDLE_S, metavar="SECONDS", help="end after so long without a pipeline at work"
    )
    return parser.parse_args(arguments)


class _Stopping:
    """A flag and no threading.Event: a handler runs in the midst of whatever the main thread does, also inside
    `Event.wait`, and would wait there for a lock of its own thread."""

    asked = False

    def hear_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)

    def _hear(self, *_: object) -> None:
        self.asked = True
