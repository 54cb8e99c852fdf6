"""A click log as a stream: rows become messages of a Kafka topic, keyed by session, and partitions of files again.

RecD's O1 (§4.1): with the session as key all rows of a session are in one partition of the topic, side by side for the
broker's compression and for the files that are landed. Here never enter a model, training, or a broker of our own; the
client library is the extra `kafka` and is imported when a broker is talked to.
"""
