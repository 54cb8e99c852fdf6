"""Before a job runs: what its file asks for is checked and completed, sizes are chosen, the master is launched.

Whatever can be refused is refused here, before anything is created.
"""
