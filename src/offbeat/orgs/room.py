"""Room on the disk. Without it nothing new is begun, and what is under way waits until there is some again."""

import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from offbeat.errors import DiskFull, Refused

log = logging.getLogger("offbeat.party")

ROOM_BYTES = 64 * 2**20
LOOK_EVERY_S = 2.0


def free_bytes(folder: Path) -> int:
    """What is free where this folder is, or will be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def refuse_without_room(folder: Path, who: str) -> None:
    if free_bytes(folder) < ROOM_BYTES:
        log.error("%s has %d MB left on its disk: nothing new is begun", who, free_bytes(folder) // 2**20)
        raise Refused(f"'{who}' has too little room on its disk to begin anything new; ask again later.")


def wait_for_room(folder: Path, run: str, within_s: float, stopped: Callable[[], str]) -> None:
    """Return when there is room again; raise `DiskFull` after so long. The others wait for this party meanwhile."""
    log.error("run %s is paused: the disk of %s is full; it goes on by itself once there is room", run, folder)
    end_s, never = time.monotonic() + within_s, threading.Event()
    while free_bytes(folder) < ROOM_BYTES and not stopped():
        if time.monotonic() > end_s:
            raise DiskFull(
                f"the disk of {folder} has been full for {within_s:.0f} s; make room, and submit the job again."
            )
        never.wait(LOOK_EVERY_S)
    log.warning("run %s goes on: there is room on the disk again", run)
