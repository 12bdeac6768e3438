"""Which files hold the segments of a log: as the listing says, or as a decided swap of compaction will have it."""

from dataclasses import dataclass, field

from penstock.ports.disk import Disk
from penstock.storage.checked_file import DamagedFile
from penstock.storage.compaction.swap import FILE_NAME as SWAP_NAME
from penstock.storage.compaction.swap import check_there, load_swap, where
from penstock.storage.log.segment import INDEX_SUFFIX, LOG_SUFFIX


@dataclass(slots=True)
class SegmentFiles:
    """Names of segments, without suffix and in order, and where to read those that are about to change names."""

    directory: str
    names: list[str]
    swapped: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Segment and card of each name that a swap gives to another file."""
    problem: str | None = None
    """Why a swap cannot be finished."""

    def log_path(self, name: str) -> str:
        return self.swapped[name][0] if name in self.swapped else f"{self.directory}/{name}{LOG_SUFFIX}"

    def card_path(self, name: str, suffix: str) -> str | None:
        """None for a card that goes with the swap."""
        if name not in self.swapped:
            return f"{self.directory}/{name}{suffix}"
        return self.swapped[name][1] if suffix == INDEX_SUFFIX else None


def segment_names(names: list[str]) -> list[str]:
    """The names, without suffix, of the segments in a listing."""
    return [name[:20] for name in names if name.endswith(LOG_SUFFIX) and len(name) == 24 and name[:20].isdigit()]


def find_segments(disk: Disk, directory: str, present: list[str]) -> SegmentFiles:
    """The segments in a listing, after what was decided. Blocking."""
    files = SegmentFiles(directory, segment_names(present))
    if SWAP_NAME not in present:
        return files
    try:
        swaps = load_swap(disk, directory)
        for swap in swaps:
            check_there(disk, directory, swap)
    except DamagedFile as error:
        files.problem = str(error)
        return files
    except (ValueError, KeyError, TypeError) as error:
        files.problem = f"{directory}/{SWAP_NAME}: names no segments ({error})"
        return files
    gone = {f"{base:020d}" for swap in swaps for base in swap.replaced if base != swap.into}
    into = {f"{swap.into:020d}": where(disk, directory, swap.into) for swap in swaps}
    files.names = sorted((set(files.names) - gone) | set(into))
    files.swapped = into
    return files
