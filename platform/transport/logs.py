"""How the pods of a job log: one line of `key=value` text per event, on standard error."""

from __future__ import annotations

import logging
import sys

import structlog

from elastrec.platform.specs.text.uris import mask_event


def configure_logging() -> None:
    """Sets structlog up; standard output stays free for results."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            mask_event,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
