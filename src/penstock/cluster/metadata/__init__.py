"""The metadata port on real stores.

Owns: how keys, revisions and checksums lie in a store. Never imports storage, engine or protocols.

embedded.py  one SQLite file, for a broker on its own
offline.py   that file read row by row, and rebuilt, without a broker
"""
