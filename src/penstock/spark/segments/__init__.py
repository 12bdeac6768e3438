"""A broker's data directory, read straight from its sealed segments. Never writes, holds no lock.

segments.py   which offsets files can give, and reading them
directory.py  whose directory it is, and whether a broker runs on it
chain.py      the segments of a partition at one moment, also while compaction swaps them
batches.py    batches out of files, checked
"""
