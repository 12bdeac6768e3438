"""What one connection, and all of a listener together, may cost."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    frame_bytes: int = 100 << 20
    in_flight: int = 64
    """Unanswered requests of one connection; reading stops above it."""
    unsent_bytes: int = 4 << 20
    pushed_bytes: int = 1 << 20
    """Unsent, above which a session may not push. Less than `unsent_bytes`, so that what a slow reader sends is still
    read: if it were not, both sides could wait for each other."""
    write_stall_s: float = 30.0
    frame_s: float = 30.0
    """A frame must be complete this long after its first byte, plus its size at `slowest_bytes_s`."""
    slowest_bytes_s: int = 16 * 1024
    crowded_s: float = 2.0
    """The same while others wait for room."""
    crowded_bytes_s: int = 4 << 20
    receive_bytes: int = 512 << 20
    """Large requests that are arriving, of all connections; the excess waits."""
    answer_bytes: int = 512 << 20
    """Answers that cannot leave, of all connections; above it, who holds most is closed."""
    idle_s: float = 600.0
    """Of a peer that owes nothing and waits for nothing; see `Connection.expect_within` for other rules."""
    shrink_s: float = 5.0
    connections: int = 10_000
    strangers: int = 1000
    """Peers that have not said yet who they are, on listeners that ask."""
    strangers_of_host: int = 10
    """The same of one host that is not this one; the others wait."""
    stranger_unsent_bytes: int = 16 * 1024
    stranger_in_flight: int = 2
    """As `in_flight`. What proves who somebody is, is said one by one."""
