"""A pipeline as a picture: sources → steps → sinks, with what its status says. Needs neither Spark nor a terminal.

figure.py    what is drawn: boxes, lines and their words, from a `Spec` and a `Status`
layout.py    where boxes go, in characters or pixels          quantity.py  numbers for people
channel.py   how lines run between two columns of boxes       text.py      characters
svg.py       a file of its own for browsers and documents
"""
