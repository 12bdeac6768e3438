"""The data source's front: `format("penstock")` for reads and writes, in batches and as a stream.

Spark makes one in several processes: to ask for the schema, to plan, to commit. Options are parsed where they are used,
and everything but pyspark's own classes is imported there.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class PenstockSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> "StructType":
        from penstock.spark.formats import open_format
        from penstock.spark.options.columns import schema_of
        from penstock.spark.options.options import parse_columns

        columns, format_options = parse_columns(self.options)
        return schema_of(columns, open_format(format_options).fields if format_options else None)

    def reader(self, schema: "StructType") -> "DataSourceReader":
        from penstock.spark.options.options import parse_read
        from penstock.spark.read.reader import FilteredTopicReader, TopicReader

        options = parse_read(self.options, streaming=False)
        return (FilteredTopicReader if options.pushdown else TopicReader)(options, schema)

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":  # noqa: N802 - Spark's name
        from penstock.spark.options.options import parse_read
        from penstock.spark.read.stream import TopicStream

        return TopicStream(parse_read(self.options, streaming=True), schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        from penstock.spark.options.options import parse_write
        from penstock.spark.write.writer import open_writer

        return open_writer(parse_write(self.options, streaming=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":  # noqa: N802
        from penstock.spark.options.options import parse_write
        from penstock.spark.write.stream_writer import open_stream_writer

        return open_stream_writer(parse_write(self.options, streaming=True), schema, overwrite=overwrite)
