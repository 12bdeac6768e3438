"""Spark reads and writes topics. Talks to brokers over the network, but `segments` reads a data directory's files.

Only this room imports pyspark, pyarrow and numpy (the extra `penstock-mq[spark]`), and nothing but `penstock.cli.spark`
imports it.

source.py  the front: `format("penstock")`
errors.py  what can go wrong
options/   what is asked for        read/      batch and streaming reads     segments/  reads of a data directory
write/     writes, exactly once     arrow/     record batches ↔ Arrow        formats/   values as typed columns
setup/     sessions and warmth
"""

from penstock.spark.setup.sessions import session

__all__ = ["session"]
