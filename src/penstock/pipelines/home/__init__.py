"""What is kept of pipelines between runs. Nothing here imports pyspark: commands that only look must be quick.

sealed.py     JSON files with a version and a checksum, replaced whole
directory.py  the directories: where a pipeline's checkpoint, identity, wish and status are, and who may touch them
status.py     how a pipeline does, as numbers
events.py     what happened to it, line by line
"""

from penstock.pipelines.home.directory import Holder, Home, Identity, PipelineDirectory, Wanted, Wish, default_home
from penstock.pipelines.home.events import Event, EventLog
from penstock.pipelines.home.status import SinkStatus, SourceStatus, State, Status, StepStatus

__all__ = [
    "Event",
    "EventLog",
    "Holder",
    "Home",
    "Identity",
    "PipelineDirectory",
    "SinkStatus",
    "SourceStatus",
    "State",
    "Status",
    "StepStatus",
    "Wanted",
    "Wish",
    "default_home",
]
