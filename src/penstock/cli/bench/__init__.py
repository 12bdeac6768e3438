"""`penstock bench`: throughput and latency of any Kafka-compatible broker, seen from a Python client.

Delete this folder and its line in `cli.main`, and the command is gone.

runs.py       options, the runs in turn, what is printed
load.py       the jobs: produce, consume, latency
processes.py  each job in a process of its own, its progress and its end
topic.py      the topic under test, made and removed
figures.py    rates, percentiles, and whether all that was sent came back
"""

from penstock.cli.bench.runs import command

__all__ = ["command"]
