"""The doors: each protocol is a codec (bytes to messages, no I/O) and a session (messages to engine calls).

Owns: what clients see, and what brokers say to each other. Doors never import each other, nor server. Same file names
in each: codec.py, session.py, errors.py.

kafka/       the Kafka wire protocol, for clients
internal/    what brokers say to each other
kafka_wire/  Kafka's heads, messages and error codes, which both of them speak
"""
