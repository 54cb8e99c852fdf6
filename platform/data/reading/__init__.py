"""From files to minibatches: rows are read, encoded, shuffled and laid out for the wire.

Nothing here writes a log or knows a model.
"""
