"""What a topic may be called."""

import re
from typing import Final

from penstock.errors import Code, PenstockError

LONGEST_NAME: Final = 249
_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{LONGEST_NAME}}}")


def check_name(name: str) -> None:
    """Raises PenstockError INVALID_TOPIC."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        shown = name if len(name) <= 60 else name[:57] + "..."
        raise PenstockError(
            Code.INVALID_TOPIC,
            f"topic name {shown!r} is not 1 to {LONGEST_NAME} of letters, digits, dot, underscore and hyphen",
        )
