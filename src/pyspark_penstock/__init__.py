"""What Spark looks for on the Python path: `format("penstock")` works after `pip install`, without a registration.

Spark imports every module named `pyspark_*` at the first use of any Python source, so this one imports next to nothing.
"""

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
