"""The commands of `elastrec`, one file per group. Thin: what they do is done by the rooms they call."""
