"""Metrics of predictions that merge exactly across workers: clicks, values, several heads. numpy only."""
