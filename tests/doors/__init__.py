"""What tests of the protocol doors share: a door inside this process, and messages made at random.

bad_frames.py  valid Kafka requests damaged from a seed, and noise
kafka.py       a Kafka door on an engine in memory, and a client that speaks kio's messages
kio_values.py  random messages of any Kafka API and version, as kio's entities and as plain values
toy.py         a whole door of a made-up protocol
transport.py   the sending side of a connection that only remembers
"""
