"""Figures: what the platform costs and how fast it is, measured against a named peer on the same machine.

`python -m benchmarks.NAME` prints a table, with `--output json` a list of figures. One file a figure; see `figures`
for the form they share. Nothing in the product imports this package.
"""
