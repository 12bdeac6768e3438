"""One queue of jobs for `make quick`, `make test` and `make nightly`: what is run, what it may cost, what came of it.

Starts every part in a process group of its own, the long ones first, as many at a time as keep the machine busy. Never
imports `penstock`, nor a test.

    python -m tests.runner test
    python -m tests.runner test --list
    python -m tests.runner test --only "unit: storage" --only deployment

parts.py     the parts of each suite: commands and budgets, as data
jobs.py      starts parts, waits for them, and ends them with all they have started
idle.py      whether there is room for one more, as those that run wait
reaper.py    between a part and its processes, so that none is forgotten
tally.py     tests counted, the slowest of them, what was skipped and why, each part against its budget
__main__.py  the command line, and the page of a nightly run
"""
