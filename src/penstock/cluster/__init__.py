"""What brokers agree on.

Owns: the metadata stores, and with them everything that must be decided once. Never imports protocols, net or
server.

metadata/  the metadata port on real stores
"""
