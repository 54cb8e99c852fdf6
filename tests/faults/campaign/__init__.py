"""Random faults on real jobs: they are drawn from a seed, inflicted, measured, checked and reported."""
