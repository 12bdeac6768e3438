"""Which message is next, where messages are not alike: lanes, tenants, order by key, delay.

Owns: what the records of a partition say of themselves, for all groups; and for each group which of them it gives out
next. Nothing of it is kept: whoever leads reads the records again from the first that a queue has not settled. What was
given out is in the ledger, as for any queue.

sorting.py  what a ledger knows of all this
marks.py    what records say, by offset, shared by all groups; block.py  65,536 offsets of it
indexer.py  reads what was appended into it, off the way of the acknowledgement
picker.py   of one group: which offsets are next; place.py  how far it has come in one strand
lanes.py    whose turn it is among priorities; tenants.py  among tenants; keys.py  which keys wait
later.py    what is not due yet, by time; delayed.py  where all of a queue waits equally long
early.py    what is cancelled or delivered before it is due
standing.py how a queue stands, lane by lane

A strand is what has the same lane and the same tenant: a queue of its own, in the order of offsets.
"""
