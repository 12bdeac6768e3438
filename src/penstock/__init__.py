"""Penstock: one durable log, many protocols.

Rooms, imports pointing one way: ports and records are open to all; storage <- engine <- cluster <- protocols <- server.
See ARCHITECTURE.md for the picture.
"""

__version__ = "0.1.0"
