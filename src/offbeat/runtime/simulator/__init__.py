"""Deterministic virtual time: the same seed gives the same run, to the byte."""

from offbeat.runtime.simulator.costs import CostModel, Jitter, Link
from offbeat.runtime.simulator.faults import PROFILES, CrashAndRestore, Fault, Gone, profile
from offbeat.runtime.simulator.loop import Simulator

__all__ = ["PROFILES", "CostModel", "CrashAndRestore", "Fault", "Gone", "Jitter", "Link", "Simulator", "profile"]
