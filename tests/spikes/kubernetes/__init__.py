"""A minimal Kubernetes backend, which tests the cluster protocol; not for users."""
