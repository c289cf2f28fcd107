"""docs/reference/protocols.md, drawn from the algorithms' `PROTOCOL` tables.

make protocols      writes the page anew
"""

from pathlib import Path

from offbeat.algorithms import afsgd_vp, mapa, vafl, vfb2
from offbeat.orgs import align_psi, predict
from offbeat.run.record import reveals_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "protocols.md"
PROTOCOLS = {
    "VFB2, and VFB in rounds": vfb2.PROTOCOL,
    "AFSGD-VP, and its rounds": afsgd_vp.PROTOCOL,
    "VAFL": vafl.PROTOCOL,
    "MAPA, AUDP, FedAsync, FedBuff": mapa.PROTOCOL,
    "Alignment between organisations": align_psi.PROTOCOL,
    "Prediction between organisations": predict.PROTOCOL,
}
HEAD = """# Who says what to whom

Drawn from the `PROTOCOL` table of each algorithm (`make protocols`). A test holds the tables to the messages that
simulated runs really send.

A line of a picture is one kind of message. The lines stand in the order in which a run comes to the first of each. A
party may have several roles: a chair holds labels, and every label holder is a party. `═▶ others` goes from one of a
role to others of it. What can be worked out of the messages:
[what each message reveals](../explanation/what-each-message-reveals.md).
"""
GAP = 24  # between two lifelines


def roles_of(protocol):
    """In the order in which they are met, the widest last."""
    found = dict.fromkeys(role for line in protocol for role in (line.sender, line.to))
    return sorted(found, key=lambda role: role == "party")


def picture(protocol):
    places = {role: 6 + GAP * number for number, role in enumerate(roles_of(protocol))}
    head = _put([(place - len(role) // 2, role) for role, place in places.items()])
    lifelines = [(place, "│") for place in places.values()]
    return "\n".join([head, *(_put([*lifelines, _arrow(line, places)]) for line in protocol)])


def _arrow(line, places):
    """Where its text begins, and the text."""
    start, end, name = places[line.sender], places[line.to], line.body.__name__
    if start == end:
        return start, f"├═ {name} ═▶ others"
    shaft = f" {name} ".center(abs(end - start) - 2, "─")
    return (start, f"├{shaft}▶│") if start < end else (end, f"│◀{shaft}┤")


def _put(texts):
    """One line with these texts at their places, the later ones on top."""
    line = []
    for at, text in texts:
        line += " " * (at + len(text) - len(line))
        line[at : at + len(text)] = text
    return "".join(line).rstrip()


def table(protocol):
    rows = ["| Message | From | To | When | Reveals |", "|---|---|---|---|---|"]
    for line in protocol:
        told = reveals_of(line.body)
        rows.append(f"| `{line.body.__name__}` | {line.sender} | {line.to} | {line.when} | {told} |")
    return "\n".join(rows)


def page():
    parts = [f"## {name}\n\n```text\n{picture(lines)}\n```\n\n{table(lines)}\n" for name, lines in PROTOCOLS.items()]
    return "\n".join([HEAD, *parts])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
