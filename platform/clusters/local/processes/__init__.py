"""Pods as process groups of this machine: started, limited, supervised, their logs. No idea of who asks, or why."""
