"""What a parameter server does with the requests of workers: pulls, pushes, rounds, marks. Nothing here touches a store
of records.
"""
