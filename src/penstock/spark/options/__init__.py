"""What a read or write is asked to do: every option, checked before anything runs. Pure: no network.

options.py            the options of reads and writes as values
option_table.py       every option's name, default and meaning; docs/spark-options.md is made of it
client_properties.py  names of Kafka's client properties
subscription.py       which topics
positions.py          from where to where
selection.py          which columns
columns.py            their types
pushdown.py           what filters leave of partitions, offsets and times
"""
