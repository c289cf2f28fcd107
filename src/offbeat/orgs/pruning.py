"""Old runs lose their logs and their masks' secret after the days that the owner set; what they came to stays.

A log and a nonce let its owner replay a run. Whoever stole the nonce and the key could take the masks off what was
recorded of the run elsewhere. So both go together. Transcripts stay: they hold hashes and signatures.
"""

import json
import logging
import shutil
import time
from pathlib import Path

from offbeat.errors import OffbeatError
from offbeat.jobs.organisations import job_from_text
from offbeat.orgs.control import ENDED_PHASES
from offbeat.orgs.party_config import Home

log = logging.getLogger("offbeat.party")

LOGS = tuple(place + kind for place in ("", "align/", "test/") for kind in ("events", "checkpoints"))
DAY_S = 86_400.0


def prune(home: Home, now_s: float | None = None) -> list[str]:
    """The runs whose logs went; with keep_days = 0 all are kept for ever."""
    days = home.config.store.keep_days
    if not days:
        return []
    before_s = (time.time() if now_s is None else now_s) - days * DAY_S
    pruned = [folder.name for folder in sorted(home.runs.glob("*/")) if _pruned(home, folder, before_s)]
    if pruned:
        log.info("logs of %d runs older than %g days were deleted: %s", len(pruned), days, ", ".join(pruned))
    return pruned


def _pruned(home: Home, folder: Path, before_s: float) -> bool:
    state = folder / "state.json"
    logs = [folder / name for name in LOGS if (folder / name).is_dir()]
    if not logs or not state.is_file() or state.stat().st_mtime > before_s:
        return False
    try:
        if json.loads(state.read_bytes())["phase"] not in ENDED_PHASES:
            return False
        private = job_from_text((folder / "job.toml").read_text(encoding="utf-8")).embedding.epsilon is not None
    except (OSError, ValueError, KeyError, TypeError, OffbeatError):
        return False  # damaged: for its owner to look at
    for one in logs:
        shutil.rmtree(one)
    if not private:  # the noise of private scores comes from it as long as they are asked for
        (home.private / folder.name / "nonce").unlink(missing_ok=True)
    return True
