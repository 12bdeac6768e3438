"""What brokers of a cluster say to each other, on connections to their internal listeners.

Owns: both ends of what only brokers ask, and the asking end of the rest. Never imports a door or server.

Spoken are Kafka's framing and messages (`kafka_wire`): Fetch, AddPartitionsToTxn and WriteTxnMarkers as Kafka's
brokers use them, and CopySegment, Forward, Read, ShareStart and ShareOrder of our own. Where one of Kafka's codes
stands for several of ours, our own goes beside it, in a tag that others pass over (`kafka_wire.broker_words`), so that
no error loses its meaning on the way.

Every request names its version in its head, and brokers do not ask each other which ones they serve: who asks names one
that this release and the one before it both serve. A version that is not served ends the connection. What a later
release adds is told in tags, which an earlier one passes over, and read with a default, as an earlier one says nothing.

What other doors have brokers ask of each other gets its verbs here, too.

identity.py  how brokers prove that they belong together
reception.py  the internal listener: who is let in, and what more a broker may ask
broker_certificate.py  which certificates are brokers'
peer.py      a broker's connection to another; peers.py  all of them
requests.py  what is asked by Kafka's schemas, and in which version
replica_fetch_codec.py  Fetch as a follower speaks it
segment_codec.py  CopySegment, both sides; copy_segment.py  the leader's answer to it
late_answers.py  answers out of turn, as one partition must not wait for another
subject_codec.py, error_codec.py  for whom a broker asks, and what it is refused
acquaintance.py  whether the other broker speaks Forward or Read
forwarding_codec.py  Forward, both sides; forwarding.py  how a batch is had published by its leader
reading_codec.py  Read, both sides; reading.py  how records are had from their leader
share_start.py  ShareStart, both sides: where a share group begins, as its coordinator knows
share_orders.py  ShareOrder, both sides: what ledgers of a share group do as its coordinator says
broker_source.py  a leader as its follower fetches from it
broker_calls.py   what transactions ask of other brokers
"""
