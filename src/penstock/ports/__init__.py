"""The seams: what the core asks of the outside world, as Protocols and nothing else.

Owns: clock, randomness, disk, network, metadata store. Never imports another room.
The core calls no `time`, `random`, `open` or socket by itself; the server hands it real ports, a test hands it
simulated ones from `penstock.testing`.

clock.py       wall and monotonic time
randomness.py  random bits
disk.py        files, directories, sync rounds, the worker threads
network.py     listeners and byte streams that can send file ranges
metadata.py    keys with compare-and-swap
"""
