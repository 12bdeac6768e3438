"""What the operating system has against a path or an address that somebody named, and whether that passes by itself."""

import errno
import os
from typing import Final

from penstock.errors import StartupError, WrongSettings

_RIGHTS: Final = frozenset({errno.EACCES, errno.EPERM})
_LASTING: Final = _RIGHTS | {
    errno.EADDRINUSE,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOEXEC,
    errno.ENOTDIR,
    errno.EROFS,
}


def is_lasting(error: OSError) -> bool:
    """Whether another try is of no use: somebody has to name another one, or see to this one."""
    return error.errno in _LASTING


def refusal(text: str, error: OSError) -> StartupError:
    """What a broker that cannot start for it raises."""
    return WrongSettings(text) if is_lasting(error) else StartupError(text)


def tell_path(error: OSError, another: str = "path") -> str:
    """Why a path cannot be used, and the way out.

    Args:
        another: what to choose another one of, such as `--data-dir`.
    """
    return f"{error.filename}: {error.strerror}; {_way_out(error, another)}"


def _way_out(error: OSError, another: str) -> str:
    if error.errno in _RIGHTS:
        return f"give user {_user()} access to it, or choose another {another}"
    return f"choose another {another}"


def tell_address(error: OSError) -> str:
    """Why an address cannot be had: the system's own words, without those that asyncio puts around them."""
    if error.errno is not None and error.errno > 0:  # a resolver has numbers of its own, below
        return os.strerror(error.errno)
    return error.strerror or str(error)


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # as in a container
        return str(os.geteuid())
