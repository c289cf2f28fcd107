"""Every error a user can meet, and the exit code it ends with.

    OffbeatError                    1
    ├── BadInput                    2   the user's file, key, value or option
    │   ├── BadData                 2     a table, column, id or label
    │   ├── BadJob                  2     a job file or an option
    │   └── NotInstalled            2     an optional extra is missing
    ├── PeerFailed                  3   a party or peer failed, or was lost for good
    │   ├── UnexpectedEvent         3     a message that has no place in the protocol's table
    │   └── BadFrame                3     bytes that are not one of our messages
    ├── DiskFull                    1   no room is left on this machine's disk
    └── Refused                     4   a bound was kept: budget, policy, range
        ├── NotYet                  4     a run has not ended; whoever asks again in a moment is answered
        ├── OutOfRange              4     a share does not fit the fixed-point range
        ├── BudgetSpent             4     a release would pass the privacy budget
        └── MaskReuse               4     a mask was about to be used twice

A message is one paragraph: what was expected, what came, where, and what to do about it.
"""


class OffbeatError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1


class BadInput(OffbeatError):
    """The user's file, key, value or option."""

    exit_code = 2


class BadData(BadInput, ValueError):
    """A table, column, id or label is not what it must be."""


class BadJob(BadInput, ValueError):
    """A job file or an option is not what it must be."""


class NotInstalled(BadInput):
    """An optional extra is missing."""


class PeerFailed(OffbeatError):
    """A party or peer failed, or was lost for good."""

    exit_code = 3


class UnexpectedEvent(PeerFailed):
    """A message has no place in the protocol's table."""


class BadFrame(PeerFailed):
    """Bytes are not one of our messages."""


class DiskFull(OffbeatError):
    """No room is left on this machine's disk."""


class Refused(OffbeatError):
    """A bound was kept: budget, policy, range."""

    exit_code = 4


class NotYet(Refused):
    """A run has not ended; whoever asks again in a moment is answered."""


class OutOfRange(Refused):
    """A share does not fit the fixed-point range."""


class BudgetSpent(Refused):
    """A release would pass the privacy budget."""


class MaskReuse(Refused):
    """A mask was about to be used twice."""
