"""Doors: what a broker listens with. Each configured listener becomes one, by its protocol's entry in a table.

Owns: which protocols this build speaks, and the one loop that opens, sweeps and closes listeners. What a protocol says
is its own room's business (`protocols/`). docs/doors.md tells how to add one.

table.py     the protocols: one entry each, with its standard port and when it opens; imports none of their code
door.py      a door as a value, the listener that serves it, and what doors open into
opening.py   opens all listeners in their order, closes them in reverse, sweeps their connections
recognition.py  whom a client's certificate names
kafka.py     the door for Kafka clients
internal.py  the door for the other brokers of a cluster
http.py      the door for health and metrics
"""
