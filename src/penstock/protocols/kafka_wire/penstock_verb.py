"""The one request of Penstock's own that clients may send: a verb by its name, and JSON.

It is described as `kio` describes Kafka's, so that `messages` reads and writes it. Its number is far from Kafka's, and
no ApiVersions tells of it: whoever sends it takes the server for a Penstock (docs/adr/0027).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from penstock.protocols.kafka_wire.api import Api

API: Final = Api(32_000, "penstock_verb", 0, 0, slow=True)
MAX_DOCUMENT_BYTES: Final = 256 * 1024
"""Of a question: a role of a thousand rules has 200 KB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PenstockVerbRequest:
    __flexible__: ClassVar[bool] = True
    verb: str = field(metadata={"kafka_type": "string"})
    document: bytes = field(metadata={"kafka_type": "bytes"})
    """A JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PenstockVerbResponse:
    __flexible__: ClassVar[bool] = True
    error_code: int = field(metadata={"kafka_type": "int16"})
    """One of Kafka's."""
    error_message: str | None = field(metadata={"kafka_type": "string"})
    help: str | None = field(metadata={"kafka_type": "string"})
    """The way out."""
    document: bytes = field(metadata={"kafka_type": "bytes"})
    """JSON; empty if there was an error."""


SHAPES: Final[Mapping[str, type]] = {"request": PenstockVerbRequest, "response": PenstockVerbResponse}
