"""The Spark program: copies a topic into another exactly once, for ever, and begins its query again when that fails.

Records of one key are one task's, and tasks share the output's partitions.

    python -m tests.chaos_spark.job BOOTSTRAP SOURCE TARGET CHECKPOINT
"""

import sys

TASKS = 3
ROWS_PER_BATCH = 300
# A turn that a dead task holds is not given back: those behind it wait so long, then the query begins again.
PATIENCE_MS = 8000


def main(bootstrap: str, source: str, target: str, checkpoint: str) -> None:
    from pyspark.errors import StreamingQueryException

    from penstock.spark.setup.sessions import session

    # A failed task may be tried once more, so that both ends of a batch with such a task are met.
    spark = session("chaos", f"local[{TASKS},2]", **{"spark.driver.memory": "1g"})
    brokers = {"kafka.bootstrap.servers": bootstrap}
    print("session", flush=True)
    while True:
        rows = spark.readStream.format("penstock").options(
            **brokers, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=str(ROWS_PER_BATCH)
        )
        copied = rows.load().select("key", "value").repartition(TASKS, "key")
        sink = copied.writeStream.format("penstock").options(
            **brokers, topic=target, checkpointLocation=checkpoint, **{"kafka.delivery.timeout.ms": str(PATIENCE_MS)}
        )
        query = sink.start()
        print("query", flush=True)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            print(f"failed: {_reason(str(error))}", flush=True)


def _reason(text: str) -> str:
    """The last line of a traceback in it, else its first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line.split(":")[0] or "Refused" in line.split(":")[0]]
    return (told[-1] if told else lines[0])[:300]


if __name__ == "__main__":
    main(*sys.argv[1:])
