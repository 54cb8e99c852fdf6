"""The explanation of a job in the form that its report needs."""

from __future__ import annotations

from elastrec.platform.history.records import Sizes
from elastrec.platform.history.report import Story, StoryEntry, StoryPart
from elastrec.platform.master.measuring.time_profile import PARTS
from elastrec.platform.master.reporting.explanation import as_text
from elastrec.platform.transport.messages.ledger import Explanation


def story_of(explained: Explanation) -> Story:
    """Converts an explanation to the types of the history room, which does not know masters."""
    return Story(
        text=as_text(explained),
        wall_seconds=explained.wall_seconds,
        goodput=explained.goodput,
        coverage=explained.coverage,
        parts=[StoryPart(name, seconds, PARTS.get(name, "")) for name, seconds in explained.parts.items()],
        timeline=[
            StoryEntry(entry.seconds, entry.unix_seconds, entry.what, entry.cause, entry.is_fault, entry.cost)
            for entry in explained.timeline
        ],
        omitted=explained.omitted,
        migrations=explained.migrations,
        sizes=Sizes.of_shape(explained.shape) if explained.shape is not None else None,
        shape_changes=explained.shape_changes,
    )
