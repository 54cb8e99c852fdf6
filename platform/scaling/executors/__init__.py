"""How many data executors a job needs and how large they are (Primus §3.2).

A library: no job has data executors yet, its workers read by themselves. `horizontal` and `vertical` are called by the
benchmark `data_executors` and by tests alone. Rounds of scaling use `strategy`, which chooses one change of a job.
"""
