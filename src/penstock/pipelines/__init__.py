"""Data pipelines on Spark: sources → steps → sinks, each micro-batch once. Above `spark`, below `cli`.

`pip install 'penstock-mq[pipelines]'`; pyspark and the sinks' client libraries are imported where they are used.

model.py  what a pipeline is       keys.py  a key of its file     errors.py  what can go wrong
spec/     YAML and Python → model  sinks/   where rows go         run/       a pipeline at work
home/     what is kept between runs  driver/  the background process  http.py  its health and metrics
check.py  what is wrong with one   backfill.py  older rows           drawing/   as a picture
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.pipelines.spec.definition import Pipeline

__all__ = ["Pipeline"]


def __getattr__(name: str) -> Any:
    """Commands that look at a home need none of this."""
    if name == "Pipeline":
        from penstock.pipelines.spec.definition import Pipeline

        return Pipeline
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
