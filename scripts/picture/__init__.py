"""The picture in README: terminals in which a broker is killed, recorded as they run and drawn as one animated SVG.

`python -m scripts.picture FILE` runs it all on this machine. What is shown was on the terminals, when it was there.

__main__.py    what is typed, and when
recording.py   the terminals, and what they show over time
screen.py      what a terminal shows as rows of styled text
drawing.py     a recording as an SVG file
"""
