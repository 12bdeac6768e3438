"""Pipelines under SIGKILL: drivers, JVMs, Python workers and brokers die, and every sink has each record once.

Owns a pipeline as the command line runs it, the kills, and the verdict. Sinks are watched and read from outside, each
by a reader of its own (confluent-kafka, pyarrow, deltalake, pyiceberg, sqlite3, psycopg, the stand-in for BigQuery).

rows.py          what is fed                     verdict.py   what is in a sink and ought to be
destinations.py  what every sink offers          tables.py    Parquet, Delta, Iceberg
databases.py     SQLite, PostgreSQL              services.py  topics, BigQuery
strikes.py       who dies when, as a seed says   process.py   the pipeline's process and what it leaves on disk
run.py           feeds, strikes, judges          table.py     the verdict for people
"""
