"""Generated click logs with a planted truth. No job needs this room; tests, benchmarks and the tutorial do."""
