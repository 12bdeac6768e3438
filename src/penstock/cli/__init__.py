"""The `penstock` command.

Owns: the words a person types and what is printed back. One file per noun, imported only when that noun is
called, so `penstock serve` pays for nothing it does not use. Never imports another room, except `cli.serve`,
which starts `server` with the settings and logs it needs.

main.py   finds the noun, prints the help, hands over
serve.py  runs a broker until a signal or a failure ends it
"""
