"""The Kafka wire protocol.

Owns: frames, versions and errors as Kafka clients know them. Never imports another protocol or server.

codec.py     request and response headers
messages.py  message bodies, driven by the schemas of `kio`
fetch_codec.py     Fetch by hand
fetch_sessions.py  what incremental fetches remember
session.py   one connection: dispatch to handlers, time them, answer
topic_fields.py  a topic as two APIs describe it
configs.py   settings as the admin APIs describe them
config_changes.py  what both ways of altering them share
answer_room.py  how much one answer may hold
errors.py    our errors as Kafka's codes
handlers/    one file per API; the versions advertised are the ones they name
"""
