"""A Kubernetes backend in a few hundred lines, to learn what the cluster protocol needs; not for users."""
