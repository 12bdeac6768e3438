"""What the JVM says reaches standard error, but for one line."""

import os
import threading

from penstock.spark.setup.gateway import pass_on


def test_a_warning_of_every_start_is_left_out() -> None:
    said, says = os.pipe()
    heard, hears = os.pipe()
    passing = threading.Thread(target=pass_on, args=(said, hears))
    passing.start()
    warning = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
    os.write(says, warning + b"WARNING: something else\n" + warning + b"an end without a new line")
    os.close(says)
    passing.join()
    with open(heard, "rb") as read:
        assert read.read() == b"WARNING: something else\nan end without a new line"


def test_nobody_who_writes_is_kept_waiting_when_nobody_reads() -> None:
    said, says = os.pipe()
    heard, hears = os.pipe()
    os.close(heard)
    passing = threading.Thread(target=pass_on, args=(said, hears))
    passing.start()
    for _ in range(100):
        os.write(says, b"x" * 4095 + b"\n")
    os.close(says)
    passing.join()
