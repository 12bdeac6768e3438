"""Signals as from a terminal, however the tests were started."""

import signal

# A shell that is not interactive has what it starts in the background ignore Ctrl-C, and children inherit that: then no
# test could interrupt one. Children of a process that handles a signal begin with the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as nohup has it, and what is ignored is so in children, too
    signal.signal(signal.SIGHUP, lambda *_: None)
