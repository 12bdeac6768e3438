"""Spark reads and writes topics. Talks to brokers over the network, but `segments` reads a data directory's files.

Of the broker's rooms none imports this one, nor pyspark, pyarrow and numpy (the extra `penstock-mq[spark]`); only
`penstock.pipelines` and `penstock.cli.spark` do.

source.py  the front: `format("penstock")`
errors.py  what can go wrong
options/   what is asked for        read/      batch and streaming reads     segments/  reads of a data directory
write/     writes, exactly once     arrow/     record batches ↔ Arrow        formats/   values as typed columns
setup/     sessions and warmth
"""

from penstock.spark.setup.sessions import session

__all__ = ["session"]
