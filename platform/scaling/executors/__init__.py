"""The number and the size of a job's data executors (Primus §3.2).

A library: jobs have no data executors yet, because their workers read the data. Only the benchmark `data_executors` and
tests call `horizontal` and `vertical`. Rounds of scaling use `strategy`, which chooses one change of a job.
"""
