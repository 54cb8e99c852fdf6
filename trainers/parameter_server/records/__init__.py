"""A server's share of checkpoint records: written beside the training, read back for any set of buckets."""
