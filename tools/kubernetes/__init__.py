"""A real Kubernetes control plane on this machine, built from its Go modules: for tests and trials, never for users."""
