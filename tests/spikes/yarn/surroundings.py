"""Checks whether the spike can run on this machine."""

from __future__ import annotations

import importlib.util
import os

from tools.yarn.cluster import JARS


def missing() -> str:
    """What is missing; empty where the spike can run."""
    if not os.environ.get("ELASTREC_SPIKES"):
        return "the spikes need real servers: `make spikes` runs them"
    if importlib.util.find_spec("jpype") is None:
        return "JPype1 is not installed; `make spikes` does it"
    if not JARS.are_here:
        return "Hadoop's jars are not here; `make spikes` fetches them"
    program = JARS.missing_program()
    return f"{program} is not installed" if program else ""
