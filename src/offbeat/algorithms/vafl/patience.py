"""How long a party waits before it asks after an answer. It learns this from the answers, since it sees no clock."""

BACKOFF_MAX = 8.0  # a party waits at most this many times `least_s`
SHRINKS = 0.98  # with every answer that came before anybody asked after it


class Patience:
    """Begins with `least_s`. Grows when what was asked after was being worked on: the question came too early."""

    def __init__(self, least_s: float) -> None:
        self.least_s, self.factor = least_s, 1.0

    def pause_s(self, tries: int = 0) -> float:
        """How long to wait after so many questions in vain."""
        return self.least_s * min(self.factor * 2.0 ** min(tries, 10), BACKOFF_MAX)

    def too_short(self) -> None:
        self.factor = min(2.0 * self.factor, BACKOFF_MAX)

    def long_enough(self) -> None:
        self.factor = max(SHRINKS * self.factor, 1.0)
