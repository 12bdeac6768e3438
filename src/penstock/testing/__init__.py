"""Simulated ports, for our tests and for users': a whole broker in one thread, in virtual time, from a seed.

Owns: every stand-in for the outside world, and the broker embedded in a test. Never imports protocols, net or
engine, `embedded.py` excepted. Nothing here is imported by a broker that serves.

embedded.py         a broker inside a test; `penstock.pytest_plugin` makes fixtures of it
held_port.py        the port it keeps while it is stopped
virtual_clock.py    an event loop with virtual time and a seeded order, and processes that can be killed
faulty_disk.py      the disk port in memory: power cuts, torn writes, errors, a full device
disk_tree.py        what that disk holds: durable and pending pages and names, what a power cut leaves
memory_network.py   the network port without sockets: seeded chunks and delays, back-pressure, resets
memory_metadata.py  the metadata port: a simulated etcd and its faulty links
etcd_state.py       what it holds
"""

from penstock.testing.embedded import EmbeddedBroker, embedded_broker

__all__ = ["EmbeddedBroker", "embedded_broker"]
