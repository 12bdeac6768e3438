"""What tests of the protocol doors share: a door inside this process, and messages made at random.

kafka.py       a Kafka door on an engine, on memory or on a real disk, and a client that speaks raw frames
kio_values.py  random messages of any Kafka API and version, as kio's entities and as plain values
"""
