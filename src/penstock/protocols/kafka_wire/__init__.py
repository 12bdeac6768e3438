"""Kafka's bytes, as the door for clients and the talk between brokers both need them.

Owns: heads, message schemas, error codes. Never imports a door, nor what brokers say to each other.

api.py           an API as both sides know it
codec.py         request and response headers
messages.py      message bodies, driven by the schemas of `kio`
errors.py        our errors as Kafka's codes
broker_words.py  errors as brokers tell them to each other
penstock_verb.py  the one request of our own
guest.py         who comes to the internal listener, and what more is answered there
"""
