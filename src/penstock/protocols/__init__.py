"""The doors: each protocol is a codec (bytes to messages, no I/O) and a session (messages to engine calls).

Owns: what clients see. Protocols never import each other, nor server. Same file names in each:
codec.py, session.py, errors.py.

kafka/  the Kafka wire protocol
"""
