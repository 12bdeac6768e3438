"""Pipelines to begin with, commented: what `penstock pipeline new` writes."""

from typing import Final

_HEAD: Final = """\
# A pipeline: rows come from sources, go through steps, and end in sinks. Check it: penstock pipeline check FILE
# Run it until Ctrl-C: penstock pipeline run FILE
name: {name}
server: ${{PENSTOCK_SERVER:127.0.0.1:9092}}   # ${{VARIABLE:default}}
every: 1s                    # how often a micro-batch begins; 0: as soon as the one before is done

sources:
  orders:                    # the name is a table's in the steps below
    topic: orders
    format: json             # also avro, protobuf, msgpack; without it, key and value are bytes
    schema: id BIGINT, customer STRING, amount DOUBLE, at TIMESTAMP
    from: earliest           # where the first run begins; later ones go on where the last one stopped
    expect:
      has an id: id IS NOT NULL          # rows that break it go to the dead letters

steps:                       # in order: a step sees the sources, and the steps above it
  clean:
    sql: |
      SELECT id, customer, amount, at
      FROM orders
      WHERE customer IS NOT NULL
    expect:
      positive: {{that: amount > 0, otherwise: quarantine}}   # or warn, drop, fail
"""

_TOPIC: Final = """\

sinks:
  out:
    from: clean              # without it: the last step
    topic: orders.clean      # made when it is missing; a row's columns are a JSON object
    key: customer

dead_letters:                # rows that cannot be decoded, break an expectation, or are refused by a sink
  topic: {name}.dead         # or {{file: DIR}}, log, drop
"""

_DELTA: Final = """\
  daily:
    sql: |
      SELECT *, CAST(at AS DATE) AS day
      FROM clean

sinks:
  lake:
    from: daily              # without it: the last step
    delta: ./lake/orders     # a Delta table, made when it is missing; relative to this file
    partition_by: [day]

dead_letters:                # rows that cannot be decoded, break an expectation, or are refused by a sink
  topic: {name}.dead         # or {{file: DIR}}, log, drop
"""

_PYTHON: Final = '''\
"""A pipeline: rows come from sources, go through steps, and end in sinks.

Check it: penstock pipeline check FILE    Run it until Ctrl-C: penstock pipeline run FILE
"""

import os

from pyspark.sql import DataFrame

from penstock.pipelines import Pipeline

pipeline = Pipeline(
    "{name}",
    server=os.environ.get("PENSTOCK_SERVER", "127.0.0.1:9092"),
    every="1s",  # how often a micro-batch begins; 0: as soon as the one before is done
)

pipeline.topic(
    "orders",  # the name is a table's in the steps below
    topic="orders",
    format="json",  # also avro, protobuf, msgpack; without it, key and value are bytes
    schema="id BIGINT, customer STRING, amount DOUBLE, at TIMESTAMP",
    from_="earliest",  # where the first run begins; later ones go on where the last one stopped
    expect={{"has an id": "id IS NOT NULL"}},  # rows that break it go to the dead letters
)


# A step's parameters are sources, and steps above it. It says what to do with the rows, and runs nothing itself.
@pipeline.step(expect={{"positive": {{"that": "amount > 0", "otherwise": "quarantine"}}}})  # or warn, drop, fail
def clean(orders: DataFrame) -> DataFrame:
    return orders.where("customer IS NOT NULL").select("id", "customer", "amount", "at")


# The topic is made when it is missing; a row's columns are a JSON object.
pipeline.sink("out", source="clean", topic="orders.clean", key="customer")

# Rows that cannot be decoded, break an expectation, or are refused by a sink; or file="DIR", or "log", "drop".
pipeline.dead_letters(topic="{name}.dead")
'''

SAMPLES: Final = {"topic": _HEAD + _TOPIC, "delta": _HEAD + _DELTA, "python": _PYTHON}
"""By kind: from a topic to a topic, from a topic to a Delta table, the first one as a Python program."""


def sample(kind: str, name: str) -> str:
    """The text of a file.

    Args:
        kind: one of `SAMPLES`; `python` is a Python program, the others are YAML.
        name: the pipeline's.
    """
    return SAMPLES[kind].format(name=name)
