"""A parameter server's handling of workers' requests: pulls, pushes, rounds, marks. It does not access a store of
records.
"""
