"""Pods as process groups of this machine: started, limited, supervised, their logs. Knows nothing of its callers."""
