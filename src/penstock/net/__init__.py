"""Sockets.

Owns: TCP behind the network port, frames with a length in front, the order of answers, back-pressure.
Never imports engine, protocols or server.

tcp.py         listeners and streams on the event loop; sendfile on a duplicate of the descriptor
tls.py         contexts from PEM files
frames.py      bytes into length-prefixed frames, one reused buffer per connection
room.py        memory that all connections share: for large requests, and for answers that cannot leave
connection.py  one connection: frames to a session, answers back in request order, limits
"""
