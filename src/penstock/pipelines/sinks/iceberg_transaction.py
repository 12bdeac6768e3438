"""A transaction of pyiceberg that works out the table's metadata once per change instead of once per look.

pyiceberg copies all metadata, every snapshot of the table included, whenever a transaction looks at it, some twenty
times in an append: in a table with a thousand snapshots that is seconds.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.table import Table, Transaction


def quick_transaction(table: "Table") -> "Transaction":
    """A transaction like `table.transaction()`."""
    from pyiceberg.table import Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import update_table_metadata

    class QuickTransaction(Transaction):
        _seen: Any = None

        @property
        def table_metadata(self) -> TableMetadata:
            base, updates = self._table.metadata, self._updates
            if self._seen is None or self._seen[0] is not base or self._seen[1] is not updates:
                self._seen = (base, updates, update_table_metadata(base, updates))
            known: TableMetadata = self._seen[2]
            return known

    return QuickTransaction(table)
