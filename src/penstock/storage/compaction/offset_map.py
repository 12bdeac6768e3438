"""The last offset of each key, by a hash of 16 bytes, in 24 bytes a slot: a dict would take five times that.

Open addressing with linear probing in one bytearray; a slot is the key's BLAKE2b digest and its offset plus one. Two
keys with one digest would be taken for the same: with a thousand million keys the odds are one in 10**20.
"""

from hashlib import blake2b

_DIGEST_BYTES = 16
_SLOT_BYTES = 24
_EMPTY = bytes(_DIGEST_BYTES)
_LEAST_SLOTS = 64


class OffsetMap:
    """Holds `max_keys` keys, and more only while one batch is put in: see `is_full`."""

    __slots__ = ("_mask", "_table", "count", "max_keys")

    def __init__(self, max_keys: int, expected_keys: int) -> None:
        self.max_keys = max_keys
        self.count = 0
        slots = _LEAST_SLOTS
        while slots * 3 < min(max_keys, expected_keys) * 4:
            slots *= 2
        self._mask = slots - 1
        self._table = bytearray(slots * _SLOT_BYTES)

    @property
    def is_full(self) -> bool:
        """To be asked between batches, so that even a batch larger than the map gets done."""
        return self.count >= self.max_keys

    def put(self, key: bytes, offset: int) -> None:
        """Note a key's offset; later calls come with higher ones."""
        digest = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        if self._store(digest, (offset + 1).to_bytes(8, "little")):
            self.count += 1
            if self.count * 4 > (self._mask + 1) * 3:
                self._grow()

    def get(self, key: bytes) -> int:
        """The key's last offset, or -1."""
        digest = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        table, mask = self._table, self._mask
        slot = int.from_bytes(digest[:8], "little") & mask
        while True:
            at = slot * _SLOT_BYTES
            found = table[at : at + _DIGEST_BYTES]
            if found == digest:
                return int.from_bytes(table[at + _DIGEST_BYTES : at + _SLOT_BYTES], "little") - 1
            if found == _EMPTY:
                return -1
            slot = (slot + 1) & mask

    def _store(self, digest: bytes, number: bytes) -> bool:
        """Returns whether the key is new."""
        table, mask = self._table, self._mask
        slot = int.from_bytes(digest[:8], "little") & mask
        while True:
            at = slot * _SLOT_BYTES
            found = table[at : at + _DIGEST_BYTES]
            if found == digest:
                table[at + _DIGEST_BYTES : at + _SLOT_BYTES] = number
                return False
            if found == _EMPTY:
                table[at : at + _SLOT_BYTES] = digest + number
                return True
            slot = (slot + 1) & mask

    def _grow(self) -> None:
        old = bytes(self._table)
        self._mask = self._mask * 2 + 1
        self._table = bytearray(len(old) * 2)
        for at in range(0, len(old), _SLOT_BYTES):
            digest = old[at : at + _DIGEST_BYTES]
            if digest != _EMPTY:
                self._store(digest, old[at + _DIGEST_BYTES : at + _SLOT_BYTES])
