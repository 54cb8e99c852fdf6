"""The policies that ship with elastrec, one file each; examples for a policy of your own (see `scaling.policy`)."""
