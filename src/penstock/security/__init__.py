"""Who somebody is, and what they may do: the rooms that all doors share.

Owns: rules and the policy of them, users, what stands for their passwords, API keys, logins. Never imports a door, a
protocol, storage or server; of the engine only `engine.access`, whose `Policy` is made here. It knows no protocol's
frames: a door brings what a peer says, and is given bytes to answer with, a `Subject`, or one error of one text.

rules.py           rules, which are Kafka's ACLs, and filters of them
ruleset.py         one revision of all rules, indexed: a policy
roles.py           rules under a name
modes.py           open, watch, closed; what a subject may do to a thing in Kafka's bits
methods.py         how somebody has proved who they are; super users
names.py           what users and roles may be called
secret.py          bytes that do not show themselves
refusal.py         the one error of what comes before somebody is known
scram.py           SCRAM: keys, and the server's side of an exchange
decoys.py          keys of users that are not there
plain.py           PLAIN: what a client says
passwords.py       a password checked against the keys of SCRAM, in threads
backoff.py         who guesses waits
api_keys.py        API keys: made, taken apart
sealing.py         secrets that have to be readable, sealed; secret_files.py  files that only their owner may read
paths.py           every key of security in the metadata store
directory.py       what is under them, as of one revision
loader.py          keeps the policy of a broker as the metadata store has it
changes.py         how a change is made; user_changes.py, rule_changes.py, key_changes.py  users, rules, API keys
authentication.py  from proofs to a subject
guard.py           all of it, of one broker
certificate_names.py  a certificate's subject as Java spells it, which is what rules of Kafka name
certificate_rules.py  from that name to a user's
"""
