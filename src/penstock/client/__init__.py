"""A blocking Kafka client: connections, metadata, offsets and fetches, for one thread at a time.

Owns: what a program that is no broker says on the wire. Any Kafka broker will do. Never imports engine, storage, server
or cli, nor pyspark, pyarrow or numpy; `kio` only when `Connection.call` is used.

errors.py      what goes wrong, and whether trying again may help
settings.py    where the brokers are and how to talk to them; goes to other processes by pickle
security.py    Kafka's security properties; tls.py and sasl.py are its halves
credentials.py where secrets come from: files, the environment; contexts.py is `~/.penstock/config.yaml`
tls.py         certificates, and the handshake
sasl.py        user and password, and how they are proven; scram.py is what SCRAM says
connection.py  one broker: a frame out, a frame in, versions
cluster.py     brokers, topics, leaders, coordinators, offsets
producer.py    record batches out, several at a time
transaction.py a transaction's control requests
fetching.py    one partition's record batches, as fast as they come
"""
