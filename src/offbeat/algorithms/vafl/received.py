"""What a peer's message must look like before VAFL uses it. Ranges come first: nobody makes a party take memory, spend
budget or lose count by naming a large, a negative or a repeated number. What is refused has changed nothing."""

import numpy as np

from offbeat.algorithms.vafl.messages import PredictAsked, Refreshed, Resumed, Upload
from offbeat.errors import UnexpectedEvent
from offbeat.learning.embeddings import Array
from offbeat.party.contract import PartyName
from offbeat.party.expected import expect

NUMBERS_END = 2**62
"""Numbers of releases and requests are below this: they and their successors fit the wire."""
FORGOTTEN_MOST = 2**32
"""A client that came back is charged for so many releases at most: sums of these stay far below the ledger's range."""


def expect_number(sender: PartyName, what: str, number: int, least: int = 1) -> None:
    expect(least <= number < NUMBERS_END, sender, f"the {what} number {number}")


def expect_rows(sender: PartyName, rows: Array, count: int) -> None:
    """Row numbers of one table, none of them twice: a ledger counts a row of one message once."""
    fits = rows.ndim == 1 and rows.dtype.kind == "i" and (not len(rows) or (rows.min() >= 0 and rows.max() < count))
    if not fits or len(np.unique(rows)) < len(rows):
        raise UnexpectedEvent(
            f"{sender} sent row numbers of shape {rows.shape} and {rows.dtype}; expected whole numbers from 0 to "
            f"{count - 1}, none of them twice. Are both sides running the same job?"
        )


def expect_vectors(sender: PartyName, vectors: Array, rows: int, width: int) -> None:
    """Embeddings or derivatives: one for each row."""
    if vectors.shape != (rows, width) or vectors.dtype.kind != "f":
        raise UnexpectedEvent(
            f"{sender} sent an array of shape {vectors.shape} and {vectors.dtype} for {rows} rows; expected one vector "
            f"of {width} numbers for each row. Are both sides running the same job?"
        )


def expect_upload(sender: PartyName, body: Upload, rows: int, width: int) -> None:
    expect_number(sender, "release", body.release)
    expect(0 <= body.oldest <= body.release, sender, f"release {body.release} with {body.oldest} as its oldest")
    expect(len(body.rows) > 0 or not body.wanted, sender, f"release {body.release}, an upload of no rows")
    expect_rows(sender, body.rows, rows)
    expect_vectors(sender, body.embedding, len(body.rows), width)


def expect_refreshed(sender: PartyName, body: Refreshed, asked: Array, rows: int, width: int) -> None:
    """Some of the rows that were asked for: those whose cap is reached are left out."""
    expect_rows(sender, body.rows, rows)
    expect_vectors(sender, body.embedding, len(body.rows), width)
    expect(bool(np.isin(body.rows, asked).all()), sender, f"other rows than request {body.request} named")


def expect_derivative(sender: PartyName, derivative: Array, rows: int, width: int) -> None:
    expect_vectors(sender, derivative, rows, width)
    expect(bool(np.isfinite(derivative).all()), sender, "a derivative that is not finite")


def expect_slice(sender: PartyName, body: PredictAsked, rows: int) -> None:
    """The rows to be predicted: some of those that there are."""
    expect(0 <= body.start < body.stop <= rows, sender, f"rows {body.start} to {body.stop} of {rows} to be predicted")


def expect_life(sender: PartyName, body: Resumed) -> None:
    expect_number(sender, "release", body.first)
    expect(0 <= body.forgotten <= FORGOTTEN_MOST, sender, f"{body.forgotten} as the number of forgotten releases")
