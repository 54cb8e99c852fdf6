"""Buckets that change their server while both serve (DLRover-RM §5.2, seamless migration).

The new owner of buckets copies them while their old owner receives pushes, then copies the changes since, until little
is left; then it takes them over: the old owner stops serving them at that moment, and the rest, its marks and its dense
buckets follow. This room contains the messages between two servers and both sides of them. The master decides when and
where buckets move. Records and workers do not belong here.
"""
