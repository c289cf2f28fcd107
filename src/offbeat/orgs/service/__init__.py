"""Scores over HTTP: a process beside the daemon, which holds no key material of sessions and opens no table.

app.py        the routes
openapi.py    what the routes take and give, for programs and for people
callers.py    who may ask, how much and how fast
gathering.py  questions that come at the same time go out together
batches.py    many rows in one order, streamed and taken up again
"""
