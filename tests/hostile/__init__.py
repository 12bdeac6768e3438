"""Hostile workloads and what each may cost a broker: memory, a stall of its loop, an innocent client's time.

The attackers are a process of their own, the broker is a real one, and the innocent client writes a small record at a
time and waits until it is safe. `make soak` runs all of them (`python -m tests.hostile`) and holds them against the
table. `make test` runs three, and judges what does not depend on how busy the machine is.

attacks.py   what attackers do, and the program that does it
budgets.py   the table: which attack, and the most it may cost
trial.py     one attack on a new broker, measured
__main__.py  all of them, as a table
"""
