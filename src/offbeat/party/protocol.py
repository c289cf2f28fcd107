"""Who says what to whom, and when: a table for each algorithm. What a message reveals, its own docstring says.

A role is a word: a party may have several (a chair holds labels), and the table names the narrowest that sends or
receives. tests/simulation/test_protocols.py holds the tables to what is really sent; docs/reference/protocols.md is
drawn from them.
"""

from typing import NamedTuple

from offbeat.party.contract import Message


class Line(NamedTuple):
    body: type[Message]
    sender: str
    to: str
    when: str


class Goodbye(Message, frozen=True, gc=False):
    """Whoever was told that the run is over has understood it.

    Reveals: nothing.
    """


def messages_of(protocol: tuple[Line, ...]) -> tuple[type[Message], ...]:
    return tuple(dict.fromkeys(line.body for line in protocol))
