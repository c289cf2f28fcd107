"""What was decided about a party's data, in lines that its key has signed: by hand, by the policy, about the policy.

Each line names the signature of the one before it. So nobody without the key can change a line or take one out of the
middle unnoticed; whether the newest lines are missing, a copy elsewhere tells. Lines of versions that did not sign
stand before the first signature.
"""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offbeat.orgs.durable import append_line, now_text, read_lines
from offbeat.runtime.grpc.identity import Identity, Member

_LOCK = threading.Lock()


def add_signed(path: Path, identity: Identity, **line: Any) -> None:
    """Write a line down, dated, behind the last one."""
    with _LOCK:
        before = read_lines(path)[0]
        told = {"at": now_text(), **line, "after": before[-1].get("signature", "") if before else ""}
        append_line(path, {**told, "signature": identity.sign(_content(told)).hex()})


def misfits(path: Path, member: Member) -> list[int]:
    """Which lines, counted from 1, are not as this member has signed them, or not behind the line that they name."""
    lines, signed, found = read_lines(path)[0], "", []
    for number, line in enumerate(lines, 1):
        signature = str(line.get("signature", ""))
        told = {key: value for key, value in line.items() if key != "signature"}
        fits = _is_hex(signature) and member.signed(_content(told), bytes.fromhex(signature))
        if (signature or signed) and not (fits and told.get("after") == signed):
            found.append(number)
        signed = signature
    return found


def _is_hex(text: str) -> bool:
    return bool(text) and len(text) % 2 == 0 and set(text) <= set("0123456789abcdef")


def _content(line: Mapping[str, Any]) -> bytes:
    return b"offbeat history\n" + json.dumps(line, sort_keys=True).encode()
