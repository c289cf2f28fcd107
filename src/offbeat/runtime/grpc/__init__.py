"""Parties on separate machines: one mutually authenticated gRPC stream per pair of parties.

identity.py   keys, certificates, the pinned roster and its hash
wire.py       the packets on a stream, and how they are read
channel.py    one delivery joined to whichever stream carries it at the moment
server.py     the listening side: who may come in
dialer.py     the calling side: connect, resume, back off
session.py    one party in one run: its host, its channels, and who watches its peers
peer_monitor.py  who fell silent, who came back, when to give up
"""

import os

# gRPC's own lines on standard error ("E1115 add_port.cc:83] ...") tell users nothing that our errors do not say.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
