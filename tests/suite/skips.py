"""The reasons for which tests may be skipped in a complete run (`ELASTREC_TESTS_COMPLETE=1`, as in `.ci/run`).

Every other skip makes such a run fail; otherwise, a missing program could silently disable tests. Tests that are
deselected by a marker are not skips.
"""

from __future__ import annotations

import os
import re
from collections import Counter

VARIABLE = "ELASTREC_TESTS_COMPLETE"

# A pattern of the reason, and why the test may be left out of a complete run.
ALLOWED = {
    r"^the spikes need real servers: `make spikes` runs them$": "servers of clusters are built first, in ten minutes",
    r"^builds whole environments: `make spikes` runs it$": "gigabytes from an index",
    r"^the (hdfs|gcs|azure|s3) server is not here: `python -m tools\.stores fetch`$": "fetched by `make spikes`",
    r"^pyspark is installed$": "of a run of `make spark`, what is tested without it",
    r"^this system makes no huge pages of memory files$": "Linux before 6.1, or without huge pages",
    r"is not installed: tools/stores/requirements\.txt$": "libraries of stores are installed by `make spikes`",
    r"^confluent-kafka is installed$": "the one for machines without it",
    r"^an agent's memory limits have their own tests$": "another file tests it",
    r"^needs the messages of all cases$": "of a run of some cases of wrong input",
    r"^only of ": "of tests over several kinds of cluster or store, those that one kind is not for",
    r"^this cluster refuses what has no room$": "of tests over several kinds of cluster, what one kind does not do",
    r"^pyspark is not installed \(extra spark\)$": "400 MB to fetch: `make spark`, which .ci/run runs, too",
}


def is_complete() -> bool:
    """Whether this run has to be complete."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def not_allowed(reasons: Counter[str]) -> list[str]:
    """A line for each reason that is not allowed: how many tests, and the reason."""
    bad = {reason: count for reason, count in reasons.items() if not any(re.search(each, reason) for each in ALLOWED)}
    return [f"{count} left out: {reason}" for reason, count in sorted(bad.items())]


def reason_of(longrepr: object) -> str:
    """The reason in the report of a skipped test: pytest writes file, line and `Skipped: reason`."""
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ")
