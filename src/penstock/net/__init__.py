"""Sockets.

Owns: TCP behind the network port, bytes into frames, the order of answers, pushing, back-pressure, deadlines.
Never imports engine, protocols or server.

tcp.py         listeners and streams on the event loop
transport.py   how bytes and file ranges leave: sendfile on a duplicate of the descriptor, or enciphered piece by piece
tls.py         contexts from PEM files that stay as they are
certificates.py   what a listener shows and whom it trusts, from PEM files that may change while it runs
revocation.py     lists of revoked certificates: what they name, and until when
tls_listener.py   accepts connections under TLS, and looks after the certificates of who is connected
tls_endpoints.py  listening and connecting under TLS, for tcp.py
tls_stream.py  the handshake, then what comes, deciphered
cipher.py      TLS of one connection without its socket
handshakes.py  how many handshakes are under way, and how long each may take
framing.py     what a connection asks of who makes frames of bytes
buffer.py      the memory that framings receive into: one reused buffer per connection
frames.py      the framing of protocols with a length in front
lines.py       the framing of protocols of lines, with payloads of a known size in between
room.py        memory that all connections share: for large requests, and for answers that cannot leave
strangers.py   those who have not said who they are: few of one host, not too many of all
limits.py      what a connection, and all of them together, may cost
deadlines.py   what a peer has to do in time
heartbeat.py   a sign of life when nothing was sent for a while
session.py     a protocol's side of a connection, and the answer that each request gets
connection.py  one connection: frames to a session, answers and pushes back; all connections of a listener
"""
