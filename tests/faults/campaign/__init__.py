"""A campaign of random faults on real jobs: drawn from a seed, inflicted, measured, checked, reported."""
