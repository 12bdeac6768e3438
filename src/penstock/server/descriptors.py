"""How the descriptors a process may have are shared out, so that connections cannot take those that logs need."""

import resource
from dataclasses import dataclass

HTTP_CONNECTIONS = 512
_SEGMENT_FILES = 4096
_BROKER_CONNECTIONS = 10_000
_NO_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class Descriptors:
    """How many of each there may be at most. What is left is for segments that are written, and for what is saved.

    A connection that has been sent a part of a file has two.
    """

    allowed: int
    connections: int
    """Of clients."""
    broker_connections: int
    http_connections: int
    segment_files: int
    """Segments that are kept open because they were read."""


def share_out(allowed: int, max_connections: int) -> Descriptors:
    """
    Args:
        allowed: descriptors the process may have.
        max_connections: the setting, which is reached only if there are four descriptors for each.
    """
    return Descriptors(
        allowed,
        connections=max(1, min(max_connections, allowed // 4)),
        broker_connections=max(1, min(_BROKER_CONNECTIONS, allowed // 16)),
        http_connections=max(1, min(HTTP_CONNECTIONS, allowed // 16)),
        segment_files=max(1, min(_SEGMENT_FILES, allowed // 8)),
    )


def descriptors_allowed() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _NO_LIMIT if soft == resource.RLIM_INFINITY else soft
