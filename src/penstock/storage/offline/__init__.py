"""A data directory looked into, checked and repaired without a broker.

Owns: what `penstock log` does. Nothing that serves imports this room; it reads with the log's own code, so that what it
says is what a start would find.

read_only_disk.py    the disk, refusing every change
catalogue.py         what the metadata store says there should be
description.py       files and batches in readable form
findings.py          what is wrong, how bad, and the way out
segment_files.py     which files hold a log's segments, a decided swap included
survey.py            every batch of a segment, good and bad, with a way on behind the bad ones
card_check.py        a card against its segment
partition_report.py  what was found in each segment of a partition
log_inspection.py    one partition checked
inspection.py        a whole directory checked
void.py              the batch that stands where records were lost
card_rebuild.py      a segment's card made again
log_repair.py        one partition repaired
repair.py            a whole directory repaired
acceptance.py        logs that end before what was durable, gone on with as they are
"""
