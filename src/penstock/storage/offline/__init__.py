"""A data directory looked into, checked and repaired without a broker.

Owns: what `penstock log` does. Nothing that serves imports this room; it reads with the log's own code, so that what it
says is what a start would find.

read_only_disk.py  the disk, refusing every change
catalogue.py       what the metadata store says there should be
description.py     files and batches in readable form
findings.py        what is wrong, how bad, and the way out
survey.py          every batch of a segment, good and bad, with a way on behind the bad ones
card_check.py      a card against its segment
log_inspection.py  one partition checked
inspection.py      a whole directory checked
void.py            the batch that stands where records were lost
log_repair.py      one partition repaired
repair.py          a whole directory repaired
"""
