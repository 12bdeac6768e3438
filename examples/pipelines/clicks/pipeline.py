"""Clicks become sessions, in an Iceberg table: what one visitor does until half an hour of silence.

    penstock serve &
    penstock topic create web.clicks --partitions 2
    python feed.py morning
    penstock pipeline run pipeline.py --once
    python feed.py noon
    penstock pipeline run pipeline.py --once

A session is written once, when it is over: when a click of anybody has come that is five minutes younger than the end
of the session's half hour of silence. Sessions that may go on stay in the pipeline's state until the next run.
"""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from penstock.pipelines import Pipeline

SILENCE = "30 minutes"

pipeline = Pipeline(
    "clicks",
    description="what visitors do, session by session",
    server=os.environ.get("PENSTOCK_SERVER", "127.0.0.1:9092"),
)

pipeline.topic(
    "clicks",
    topic="web.clicks",
    format="json",
    schema="id STRING, visitor STRING, page STRING, at TIMESTAMP",
    watermark={"column": "at", "delay": "5 minutes"},
    expect={"has a visitor": {"that": "visitor IS NOT NULL", "otherwise": "drop"}},
)


@pipeline.step
def distinct(clicks: DataFrame) -> DataFrame:
    """Browsers repeat a click whose answer they did not get: of one id, one is kept."""
    return clicks.dropDuplicatesWithinWatermark(["id"])


@pipeline.step
def sessions(distinct: DataFrame) -> DataFrame:
    session = F.session_window("at", SILENCE)
    found = distinct.groupBy("visitor", session).agg(
        F.count("*").alias("clicks"),
        F.min("at").alias("began"),
        F.max("at").alias("ended"),
        F.sort_array(F.collect_set("page")).alias("pages"),
    )
    return found.drop("session_window")


pipeline.sink("lake", source="sessions", iceberg="web.sessions", warehouse="./warehouse", partition_by=["day(began)"])
