"""One party of an alignment in its own process: `python aligning_process.py FOLDER NAME IDS`; prints a JSON line.

Every party has IDS ids, of which all share nine tenths. FOLDER has its keys and the roster, as a `Town` makes them.
"""

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

from offbeat.orgs.align_psi import MESSAGES, Aligner
from offbeat.orgs.party_config import read_home
from offbeat.orgs.tokens import id_column
from offbeat.runtime.grpc.server import StreamServer
from offbeat.runtime.grpc.session import Session

SALT = b"the salt of this alignment"


def ids_of(place: int, count: int) -> list[str]:
    shared = count * 9 // 10
    return [f"customer-{i}" for i in (*range(shared), *range(count * (place + 2), count * (place + 3) - shared))]


def main(folder: Path, name: str, count: int) -> None:
    home = read_home(folder / name)
    roster, identity = home.roster(), home.identity()
    begin = time.monotonic()
    column = id_column(np.array(ids_of(roster.names.index(name), count), dtype=object), SALT)
    hashed_s = time.monotonic() - begin
    sizes = dict.fromkeys(roster.names, len(column.tokens))
    party = Aligner(name, roster.names, roster.names[0], column, sizes=sizes, secret=name.encode().ljust(32))
    server = StreamServer(identity, roster, home.config.listen)
    server.start()
    session = Session(identity, roster, party, MESSAGES, run="scale/align", server=server, folder=folder / name / "run")
    finish = session.run().finished[name]
    wall_s = time.monotonic() - begin
    used = resource.getrusage(resource.RUSAGE_SELF)
    told = {
        "verdict": finish.verdict,
        "rows": len(party.joined or ()),
        "digest": party.agreed,
        "hashing_s": hashed_s,
        "wall_s": wall_s,
        "cpu_s": used.ru_utime + used.ru_stime,
        "memory_mb": used.ru_maxrss // 1024,
    }
    print(json.dumps(told), flush=True)
    server.stop(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
