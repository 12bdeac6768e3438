"""What operators ask of a broker and Kafka has no API for: verbs, each with a name, the right it takes and a function.

`handlers/penstock_verb.py` serves them. To add one, write its function, and a `Verb` in the table of its file; a file
of its own has to be named in `table.py`. With a question for it in `tests/doors/verbs.py` it is shown that a stranger
is refused. No verb asks for rights itself: the table says which one it takes, and on what. Only one that takes a second
one asks for that.

verb.py      what a verb is
document.py  the JSON of a question, read field by field
table.py     all verbs
users.py     users
roles.py     roles, and who has them
api_keys.py  API keys
queues.py    queues: what there are, what they go by, what is in them
queue_messages.py  their messages: leased, settled, looked at; message_fields.py  as JSON has them
queue_due.py       those that are not due yet: looked at, cancelled, delivered now
schedules.py       messages that queues get at times
policy.py    what is in force: which rule decides, what `closed` would refuse, what secrets are sealed by
"""
