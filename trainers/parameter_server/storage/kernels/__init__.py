"""Compiled loops over the arrays of a store.

Kernels do not check their arguments. Each module says whether its kernels lock a stripe or the caller holds its lock.
"""
