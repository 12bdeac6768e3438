"""Penstock: one durable log, many protocols.

Each package here is a room; imports between rooms go one way. ARCHITECTURE.md has the picture and the rules.

cli/        the `penstock` command              pipelines/  data pipelines on Spark
spark/      topics as a Spark data source       client/     a blocking Kafka client
server/     one broker process, its settings    protocols/  what clients speak: Kafka
cluster/    brokers that work together          security/   who somebody is, and what they may do
engine/     topics, partitions, groups, transactions
storage/    logs on disk                        records/    record batches as bytes
net/        sockets                             observe/    counters, metrics, logs
ports/      clock, disk, network as interfaces  testing/    simulated ports, and a broker for tests
security/   who somebody is

compiled.py       the modules that are compiled to C, and whether they are
errors.py         every error a caller can be told about
extras.py         optional packages, and how to install them
hosts.py          addresses of peers, as they are compared and counted
nearest.py        the known name that is nearest to an unknown one
obstacles.py      why the operating system refuses a path or an address
private_files.py  who else may read a file with a secret
quantities.py     times and sizes as people write them
tasks.py          background tasks whose unexpected errors stop the broker
turns.py          slow work in steps, one step in each turn of the event loop
pytest_plugin.py  the fixtures for pytest
"""

import os

__version__ = "0.1.0"

if os.environ.get("PENSTOCK_PURE") == "1":
    from penstock.compiled import run_pure

    run_pure()
