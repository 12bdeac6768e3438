"""The command line in a real terminal: what a person sees, types and interrupts.

Owns: everything that depends on a terminal being there. A shell runs in tmux, keys are typed into it, and the screen
is read back.

tmux.py           a terminal with a shell in it
conftest.py       a broker to talk to, and the terminal
test_terminal.py  the cases
"""
