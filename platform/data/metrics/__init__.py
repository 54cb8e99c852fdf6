"""Metrics of predictions that merge exactly across workers: of binary labels, of values, of several heads."""
