"""The dense parameters on servers: how they are cut into buckets, and what a server holds of them.

Here belong the layout of the flat vector, the rules that change it, and moving its buckets. Embedding rows, workers and
messages of the network must not enter.
"""
