"""Runs the real command line over a broker that does only what its first argument says.

`+hurry` after it shortens the deadline of a stop.
"""

import asyncio
import os
import sys
import threading
import types

from penstock.cli import serve
from penstock.cli.main import main
from penstock.errors import StartupError, WrongSettings


class Fragile:
    def __del__(self) -> None:
        raise ValueError("broken\nhere")


class Broker:
    def __init__(self, config: object, stats: object, log: object) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ready_words = {"kafka": "127.0.0.1:19092", "http": "[::1]:18080"}
        self.partition_count = 0
        self.first_admin_password = None
        self.leaving_s = 0.0
        self.first_admin_password = None
        self.has_certificates = BEHAVIOUR == "certified"
        self._log = log

    async def start(self) -> None:
        behaviour = BEHAVIOUR
        if behaviour == "refuse":
            raise StartupError("data_dir = x is locked\nby process 7")
        if behaviour == "misconfigured":
            raise WrongSettings("listeners.kafka = 127.0.0.1:1 cannot be used")
        if behaviour == "disk-fails":
            raise OSError(5, "Input/output error", "/data/logs")
        if behaviour == "bug":
            raise RuntimeError("a bug in start")
        if behaviour == "unraisable":
            for _ in range(50):
                Fragile()
        if behaviour == "slow-start":
            say("starting")
            await asyncio.Event().wait()
        if behaviour == "fail":
            asyncio.get_running_loop().call_soon(self.failed.set_exception, OSError(5, "sync failed"))
        if behaviour == "facts":
            import gc

            loop = type(asyncio.get_running_loop()).__module__
            umask = os.umask(0o077)
            threshold = gc.get_threshold()[0]
            say(f"facts loop={loop} umask={umask:o} threshold={threshold}")

    async def reload(self) -> None:
        say("reloaded")

    async def stop(self) -> None:
        say("stopping")
        if BEHAVIOUR == "hang-in-stop":
            await asyncio.Event().wait()
        if BEHAVIOUR == "hang-the-loop":
            threading.Event().wait()
        if BEHAVIOUR == "hang-in-thread":
            asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
        if BEHAVIOUR == "fail-in-stop":
            raise OSError(5, "sync failed")
        say("stopped")

    def gauges(self) -> dict[str, float]:
        return {}


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    BEHAVIOUR, _, hurry = sys.argv[1].partition("+")
    if hurry:
        serve.STOP_DEADLINE_S = 0.5
    stub = types.ModuleType("penstock.server.broker")
    stub.Broker = Broker  # type: ignore[attr-defined]
    sys.modules["penstock.server.broker"] = stub
    sys.exit(main(sys.argv[2:]))
