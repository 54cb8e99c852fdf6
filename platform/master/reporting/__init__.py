"""What a master says of its job: status, the ledger, the explanation, and what stays in the store after the end.

Nothing here changes the job.
"""
