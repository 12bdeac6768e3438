"""Messages with an id, appended once: a leader drops what it has appended already within the topic's window.

Owns: what a partition's leader remembers of ids, how it knows them again after another broker has led, and what becomes
of a batch with duplicates. Never imports a protocol; of queues only what their topic's record says.

windows.py  which partitions have a window: those that are led here, of topics whose queue asks for it
once.py     one of them: which records of a batch are duplicates, and what is appended then
memory.py   ids by the time they came, and where the record is
recall.py   what the log tells of them, when a broker begins to lead
ids.py      the ids of a batch, and a batch without some of its records
"""
