"""Policies on simulated clusters, and how well the simulator repeats real runs."""
