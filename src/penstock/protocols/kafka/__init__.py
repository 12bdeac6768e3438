"""The Kafka wire protocol.

Owns: frames, versions and errors as Kafka clients know them. Never imports another protocol or server.

codec.py     request and response headers
messages.py  message bodies, driven by the schemas of `kio`
fetch_codec.py     Fetch by hand
fetch_sessions.py  what incremental fetches remember
replica_fetch_codec.py  Fetch as a follower speaks it
identity.py  how brokers prove that they belong together
peer.py      a broker's connection to another; peers.py  all of them
segment_codec.py  CopySegment, which brokers ask of each other for whole segments
broker_source.py  a leader as its follower fetches from it
broker_words.py   errors as brokers tell them to each other
broker_calls.py   what transactions ask of other brokers
cluster_view.py   who is in the cluster, as clients are told
leader_hints.py   who leads instead, told in a refusal (KIP-951)
session.py   one connection: dispatch to handlers, time them, answer
topic_fields.py  a topic as two APIs describe it
configs.py   settings as the admin APIs describe them
config_changes.py  what both ways of altering them share
load.py      how much work a broker has, told as one of its settings
operator_calls.py  what requests to change the cluster share
answer_room.py  how much one answer may hold; long_answer.py  those with thousands of rows
errors.py    our errors as Kafka's codes; transaction_errors.py  those of transactions
handlers/    one file per API; the versions advertised are the ones they name
"""
