"""Figures: what the platform costs and how fast it is, measured against a named peer on the same machine.

`python -m benchmarks NAME` prints a table, with `--output json` a list of figures; without a name, what there is. One
module per benchmark, whose form is in `common.figures`. Nothing in the product imports this package.
"""
