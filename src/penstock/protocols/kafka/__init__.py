"""The Kafka wire protocol, as clients speak it; its bytes are `kafka_wire`'s.

Owns: versions and answers as Kafka clients know them. Never imports another protocol or server.

fetch_codec.py     Fetch by hand
produce_codec.py   Produce by hand
fetch_sessions.py  what incremental fetches remember
share_codec.py     ShareFetch and ShareAcknowledge by hand
share_sessions.py  what members of share groups fetch here, in which epoch, and whose turn it is
share_requests.py  turns and ends of these sessions at work; share_places.py  partitions they name; share_acks.py
share_taking.py    what is leased to a share consumer; share_layout.py  which bytes and offsets that makes
cluster_view.py   who is in the cluster, as clients are told
leader_hints.py   who leads instead, told in a refusal (KIP-951)
acls.py      rules as the admin APIs write them; scram_numbers.py  mechanisms, likewise
client_login.py  how a client proves who it is
session.py   one connection: dispatch to handlers, time them, answer
topic_fields.py  a topic as two APIs describe it
configs.py   settings as the admin APIs describe them
config_changes.py  what both ways of altering them share
load.py      how much work a broker has, told as one of its settings
operator_calls.py  what requests to change the cluster share
authorized_operations.py  what the caller may do to a thing, as bits
answer_room.py  how much one answer may hold; long_answer.py  those with thousands of rows
transaction_errors.py  errors of transactions, as clients know them
verbs/       what operators ask that Kafka has no API for
handlers/    one file per API; the versions advertised are the ones they name
"""
