"""Single files of a click log: where their rows begin, what their header says, whether they are those of the manifest.

What a job makes of the columns (labels, features, bad rows) must not enter here.
"""
