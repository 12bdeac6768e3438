"""The sending side of a connection that only remembers, and a log that keeps what is a bug."""

import traceback

from penstock.ports.disk import File


class RecordingTransport:
    """The transport port. `taken` is how much the peer takes at once; None is everything."""

    def __init__(self, taken: int | None = None) -> None:
        self.peer = "test:1"
        self.certified = False
        self.certificate = None
        self.sent: list[bytes | tuple[File, int, int]] = []
        self.unsent = 0
        self.reading = True
        self.aborted = False
        self.closed = False
        self._takes_all = taken is None

    def write(self, data: bytes) -> None:
        self._add(bytes(data), len(data))

    def send_range(self, file: File, position: int, size: int) -> None:
        self._add((file, position, size), size)

    def _add(self, part: bytes | tuple[File, int, int], size: int) -> None:
        if self.aborted or self.closed:
            return
        self.sent.append(part)
        if not self._takes_all:
            self.unsent += size

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    @property
    def data(self) -> bytes:
        """All bytes sent, file ranges read."""
        return b"".join(part if isinstance(part, bytes) else part[0].read_at(part[2], part[1]) for part in self.sent)


class RecordingLog:
    """Stands in for a module's `log_`: never limits, keeps what would be a traceback."""

    def __init__(self) -> None:
        self.bugs: list[str] = []
        self.warnings: list[dict[str, object]] = []

    def limited(self, key: str, per_second: float = 1.0) -> "RecordingLog":
        return self

    def warning(self, event: str, /, **fields: object) -> None:
        if len(self.warnings) < 1000:
            self.warnings.append({"event": event, **fields})

    def exception(self, event: str, /, **fields: object) -> None:
        self.bugs.append(f"{event} {fields}\n{traceback.format_exc()}")
