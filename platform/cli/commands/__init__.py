"""The commands of `elastrec`, one file per group. They are thin: the work is done by the rooms that they call."""
