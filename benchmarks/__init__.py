"""Benchmarks: costs and speeds of the platform, measured against a named peer on the same machine.

`python -m benchmarks NAME` prints a table, with `--output json` a list of figures; without a name, it lists all
benchmarks. There is one module per benchmark, in the form of `common.figures`. The product does not import this
package.
"""
