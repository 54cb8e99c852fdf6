"""Stores for records: one interface, and an implementation for each kind of storage. Independent of the contents of
records."""
