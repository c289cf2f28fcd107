"""Questions that come at the same time go out together.

A question that meets a free place goes out at once, alone. While all places are taken, questions wait, and the next
place takes all that wait as one question: the more callers there are, the fewer round trips each row costs.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from offbeat.errors import OffbeatError, Refused
from offbeat.orgs.control import Predicted

PLACES = 4
ROWS_TOGETHER_MOST = 1000
ROWS_WAITING_MOST = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class WaitingQuestion:
    ids: list[str]
    answer: "asyncio.Future[Predicted]"


class Crowded(OffbeatError):
    """More waits than this service holds."""


class Gathering:
    """`ask` scores ids and blocks; it is called from threads, `PLACES` at a time."""

    def __init__(self, ask: Callable[[list[str]], Predicted], places: int = PLACES) -> None:
        self._ask, self._free = ask, places
        self._pool = ThreadPoolExecutor(places, "asking")
        self._waiting: deque[WaitingQuestion] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self.questions = 0

    @property
    def rows_waiting(self) -> int:
        return sum(len(one.ids) for one in self._waiting)

    async def scores(self, ids: list[str]) -> Predicted:
        if self.rows_waiting + len(ids) > ROWS_WAITING_MOST:
            raise Crowded(f"{self.rows_waiting} rows wait for their scores already; ask again in a moment.")
        one = WaitingQuestion(ids, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        self._send()
        return await one.answer

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _send(self) -> None:
        while self._free and self._waiting:
            group = [self._waiting.popleft()]
            rows = len(group[0].ids)
            while self._waiting and rows + len(self._waiting[0].ids) <= ROWS_TOGETHER_MOST:
                group.append(self._waiting.popleft())
                rows += len(group[-1].ids)
            self._free -= 1
            task = asyncio.create_task(self._one_question(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _one_question(self, group: list[WaitingQuestion]) -> None:
        try:
            await self._answered(group)
        finally:
            self._free += 1
            self._send()

    async def _answered(self, group: list[WaitingQuestion]) -> None:
        self.questions += 1
        try:
            answer = await asyncio.get_running_loop().run_in_executor(
                self._pool, self._ask, [id_ for one in group for id_ in one.ids]
            )
        except Refused as problem:
            if len(group) == 1:
                _fail(group, problem)
                return
            for one in group:  # whose rows were refused is found out by asking for each by itself
                await self._answered([one])
        except Exception as problem:
            _fail(group, problem)
        else:
            at = 0
            for one in group:
                if not one.answer.done():  # the caller may have gone
                    one.answer.set_result(part_of(answer, at, at + len(one.ids)))
                at += len(one.ids)


def part_of(answer: Predicted, begin: int, end: int) -> Predicted:
    chances = None if answer.probabilities is None else answer.probabilities[begin:end]
    return Predicted(
        answer.scores[begin:end], answer.known[begin:end], chances, answer.classes, answer.without, answer.numbers
    )


def _fail(group: list[WaitingQuestion], problem: Exception) -> None:
    for one in group:
        if not one.answer.done():
            one.answer.set_exception(problem)
