"""Kafka's record batch v2 as bytes: look at it, check it, patch it, build it, open it.

Owns: the 61-byte batch header, its CRC-32C, the records inside a batch, and the five compression codecs.
Never imports another room; every room may import this one. A broker moves batches without opening them: only
doors that speak of single records (HTTP, the command line) and topics that ask for it decompress and iterate.

batch.py        header view over a batch in place, CRC check, offset and epoch patch
build.py        a whole batch out of records
rewrite.py      a batch in another codec, or checked for keys, where its topic asks for it
record.py       single records inside a batch: encode, iterate, bounds checks
varint.py       zigzag variable-length integers
compression.py  gzip, snappy, lz4, zstd, each with a cap on what comes out
"""
