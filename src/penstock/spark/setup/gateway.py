"""The JVM's start. What it says on standard error is passed on, but for a line that Spark's own options bring about.

Spark has its JVM load the module jdk.incubator.vector, and a JVM that does warns of it, with no option against that.
"""

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

_NOISE: Final = b"WARNING: Using incubator modules: jdk.incubator.vector"


def launch(conf: Mapping[str, str]) -> None:
    """Start the JVM of this process, unless it runs."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    wanted = SparkConf().setAll(list(conf.items()))
    said, says = os.pipe()
    target = os.dup(2)
    threading.Thread(target=pass_on, args=(said, target), name="what the JVM says", daemon=True).start()
    try:
        gateway = launch_gateway(wanted, {"stderr": says})  # type: ignore[no-untyped-call]
    finally:
        os.close(says)
    SparkContext._ensure_initialized(gateway=gateway, conf=wanted)


def pass_on(source: int, target: int) -> None:
    """Copy lines until the source ends; both are closed then. Somebody who writes is never kept waiting."""
    with open(source, "rb") as said, open(target, "wb", buffering=0) as out:
        for line in said:
            if line.rstrip() != _NOISE:
                with suppress(OSError):  # as a terminal that is gone
                    out.write(line)
