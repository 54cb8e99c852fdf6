"""Compiled loops over the memory of a store: arrays in, arrays out.

They trust their arguments; locks of stripes are taken here or held by the caller, as each module says.
"""
