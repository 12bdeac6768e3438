"""A metadata transaction as the stores apply it: copied from what the caller gave, and checked.

The caller's mappings are read once, here: a store may work in another thread or after a wait.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

MAX_KEYS = 100  # etcd takes 128 operations unless told otherwise, and nobody should need to tell it


class Put(NamedTuple):
    value: bytes
    lease: int
    """0: bound to none."""


class Transaction(NamedTuple):
    expect: dict[str, int]
    put: dict[str, Put]
    delete: list[str]
    lease: int | None
    """The lease that must be there; None: none is needed."""

    @property
    def size_keys(self) -> int:
        """How many different keys it names."""
        return len({*self.expect, *self.put, *self.delete})


def make_transaction(
    expect: Mapping[str, int] | None,
    put: Mapping[str, bytes] | None,
    delete: Iterable[str],
    put_leased: Mapping[str, bytes] | None,
    lease: int,
) -> Transaction:
    """Take the arguments of `MetadataStore.transact`.

    Raises:
        ValueError: a key is to become two things at once, or is to be bound to no lease.
    """
    puts = {key: Put(bytes(value), 0) for key, value in (put or {}).items()}
    gone = list(dict.fromkeys(delete))
    leased = dict(put_leased or {})
    if leased and not lease:
        raise ValueError(f"keys to be bound to a lease, and none is given: {sorted(leased)}")
    twice = sorted(key for key in leased if key in puts)
    if twice:
        raise ValueError(f"keys both put and put under a lease: {twice}")
    puts |= {key: Put(bytes(value), lease) for key, value in leased.items()}
    twice = sorted(key for key in gone if key in puts)
    if twice:
        raise ValueError(f"keys both put and deleted: {twice}")
    return Transaction(dict(expect or {}), puts, gone, lease if leased else None)


def check_size(transaction: Transaction) -> None:
    """Raise `ValueError` for a transaction that etcd would refuse."""
    if transaction.size_keys > MAX_KEYS:
        raise ValueError(
            f"a transaction of {transaction.size_keys} keys; at most {MAX_KEYS} are allowed: make several of it"
        )
