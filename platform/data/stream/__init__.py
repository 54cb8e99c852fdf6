"""Click logs in Kafka: rows are published as messages of a topic, keyed by session, and landed as Parquet partitions.

RecD's O1 (§4.1): with the session as key, all rows of a session are in one partition of the topic, so that the broker
and landed files compress them together. The client library is the extra `kafka`; it is imported at the first use.
"""
