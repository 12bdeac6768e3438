"""Record batches to Arrow columns and back, a chunk of records at a time. Owns nothing that lasts.

Imports numpy, pyarrow and `penstock.records`; never pyspark, a socket or a file.

decode.py       batches to one Arrow record batch
chain.py        where each record of a section starts: the only walk from record to record
data.py         bytes under numpy, and words that start at any of them
fields.py       the fields of many records at once, every length checked
encode.py       Arrow columns to record sections, and a section to a whole batch
partitioner.py  the partition each row goes to
"""
