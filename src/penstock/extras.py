"""What is installed only where it is asked for: the package's extras, what is in them, and how to get them."""

from typing import Final

DISTRIBUTION: Final = "penstock-mq"
"""The package's name for pip; another project has the name of the command."""

_EXTRAS: Final = {
    "aetcd": "cluster",
    "deltalake": "pipelines",
    "fastavro": "spark",
    "google": "bigquery",
    "grpc": "connect",
    "grpc_status": "connect",
    "msgspec": "spark",
    "numpy": "spark",
    "pandas": "spark",
    "psycopg": "pipelines",
    "pyarrow": "spark",
    "pyiceberg": "pipelines",
    "pyspark": "spark",
    "requests": "bigquery",
    "scramp": "cluster",
    "sqlalchemy": "pipelines",
}
"""By what is imported; `google` is both BigQuery's and, with `google.protobuf`, Spark's."""


def install_line(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def extra_of(module: str) -> str | None:
    """The extra that brings a module; None for what is no part of any."""
    if module == "google.protobuf" or module.startswith("google.protobuf."):
        return "spark"
    return _EXTRAS.get(module.partition(".")[0])


def tell_missing(module: str) -> str | None:
    """What to say of a module that is not there; None if no extra brings it."""
    extra = extra_of(module)
    top = module.partition(".")[0]
    name = module if top == "google" else top  # below that name are packages of many
    return f"{name} is not installed: {install_line(extra)}" if extra else None
