"""A broker for trials: `python -m tools.kafka` prints its address and runs until Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys

from tools.kafka.broker import Broker, BrokerError, missing_program

if __name__ == "__main__":
    if missing := missing_program():
        sys.exit(f"{missing} is not installed; a broker needs Java 17 or above, and Maven to fetch it")
    try:
        with Broker() as broker:
            sys.stdout.write(f"{broker.servers}\n")
            sys.stdout.flush()
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    except BrokerError as error:
        sys.exit(str(error))
