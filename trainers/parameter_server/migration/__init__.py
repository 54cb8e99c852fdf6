"""Buckets that change their server while both serve (DLRover-RM §5.2, seamless migration).

The server that will own buckets copies them while their owner is being pushed to, then what has changed since, until
little is left; then it takes them over: the owner stops to serve them at that moment, and the rest, its marks and its
dense buckets follow. Here belong the messages between two servers and both sides of them; when buckets move, and where
to, is the master's to say. Nothing here knows of records or of workers.
"""
