"""Every cell of who may do what: principal by operation by resource by door, held against somebody else's judgement.

Of the Kafka door Apache Kafka is the judge: both brokers are given the same rules and asked the same bytes, and what
Kafka answered is kept in golden/ (`make golden` asks it again, and so does PENSTOCK_TEST_PEER=kafka). Of the HTTP
door, of commands and of Penstock's own verbs a model of the rules is, which shares no code with the broker.

rules.py      rules as words, and the themes: which principal has which
questions.py  what each of them asks: every API, in requests that change nothing
answers.py    what of an answer is about rights
brokers.py    a broker of either make that knows the principals and the rules, and what is in it
cells.py      everything that everybody is answered, and the files of golden/
differences.py  where Penstock answers otherwise on purpose
model.py      the rules once more, for what Kafka has not: paths, commands, verbs, roles
golden/       what Apache Kafka answered, one file a theme
"""
