"""What the parties of every linear method say to each other, in the order in which a run comes to it."""

from offbeat.party.lifecycle import Alarm, Begin, Halt, Ready, RosterNamed
from offbeat.party.masked_sum import KeyOffered, PartialGiven, ShareAsked, ShareGiven
from offbeat.party.protocol import Line
from offbeat.party.survey_messages import Certified, Curved, GoOn, Leap, Mark, TablePart, Taken

PARTY, HOLDER, CHAIR = "party", "label holder", "chair"

BEGINNING = (
    Line(KeyOffered, PARTY, PARTY, "at the start, to all; not where sums go through trees"),
    Line(Ready, PARTY, CHAIR, "when it knows everybody's key"),
    Line(ShareAsked, HOLDER, PARTY, "when it needs a sum: how steep the problem is, products of rows, a survey's"),
    Line(ShareGiven, PARTY, HOLDER, "as the answer; where the method says so also unasked"),
    Line(PartialGiven, PARTY, PARTY, "as the answer where sums go through trees: from child to parent"),
    Line(Begin, CHAIR, PARTY, "when it has chosen step and batch, to all"),
)
SURVEY = (
    Line(Mark, CHAIR, PARTY, "when a survey is due, to all"),
    Line(Leap, CHAIR, PARTY, "when it has found the best point in the span of the last moves, to all"),
    Line(Curved, CHAIR, PARTY, "before the table, where derivatives do not tell the curvature"),
    Line(TablePart, CHAIR, PARTY, "when the leap is taken, to all whom the survey waits for"),
    Line(Taken, PARTY, CHAIR, "when it has taken the table of a survey that does not wait for everybody"),
    Line(GoOn, CHAIR, PARTY, "when all whom such a survey waits for have said so"),
    Line(Certified, CHAIR, PARTY, "at the end of a survey that waited for everybody, to all"),
)
ENDING = (
    Line(RosterNamed, CHAIR, PARTY, "when a party was lost or is back, and on_loss is continue"),
    Line(Alarm, PARTY, CHAIR, "when it cannot go on, or its owner stops it"),
    Line(Halt, CHAIR, PARTY, "when the run is over, to all"),
)


def linear_protocol(*steps: Line) -> tuple[Line, ...]:
    """The table of a method; `steps` are its own lines."""
    return (*BEGINNING, *steps, *SURVEY, *ENDING)
