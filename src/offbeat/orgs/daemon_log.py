"""The daemon's log: lines for people, or one JSON object a line for programs; on standard error."""

import json
import logging
from typing import TextIO


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "from": record.name,
            "text": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def write_log(stream: TextIO, *, verbose: bool = False, as_json: bool = False) -> None:
    """Runs, phases, peers lost and back and refusals are always logged; `verbose` adds what helps to find a fault."""
    handler = logging.StreamHandler(stream)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler.setFormatter(JsonLines() if as_json else plain)
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("offbeat").setLevel(logging.DEBUG if verbose else logging.INFO)
