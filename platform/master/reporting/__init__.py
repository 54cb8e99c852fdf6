"""Reports of a master about its job: status, ledger, explanation, and the files in the store after the end.

This room does not change the job.
"""
