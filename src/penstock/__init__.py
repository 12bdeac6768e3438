"""Penstock: one durable log, many protocols.

Rooms, imports pointing one way: ports and records are open to all; storage <- engine <- cluster <- protocols <- server.
See ARCHITECTURE.md for the picture.
"""

import os

__version__ = "0.1.0"

if os.environ.get("PENSTOCK_PURE") == "1":
    from penstock.compiled import run_pure

    run_pure()
