"""Kafka's record batch v2 as bytes: look at it, check it, patch it, build it, open it; and where a record goes.

Owns: the 61-byte batch header, its CRC-32C, the records inside a batch, the five compression codecs, and which
partition a key belongs to. Never imports another room but ports; every room may import this one. A broker looks at
records once, when they are produced, and keeps and sends batches as they came.

batch.py         header view over a batch in place, CRC check, offset and epoch patch
build.py         a whole batch out of records
walk.py          every record's lengths and order checked, without making an object of any
header_values.py what a header of one name says, record by record
rewrite.py       a batch opened and looked at; in another codec, or with keys, where its topic asks for it
stamp.py         a producer id and a sequence for a batch that has none
record.py        single records inside a batch: encode, iterate, bounds checks
control.py       control batches: what the broker writes about transactions, and gaps
varint.py        zigzag variable-length integers
compression.py   gzip, snappy, lz4, zstd, each with a cap on what comes out
partitioning.py  the partition of a key, by the hashes that clients use; of records without one, by turns
"""
