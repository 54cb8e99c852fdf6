"""Generated click logs with known click probabilities, for tests, benchmarks and the tutorial."""
