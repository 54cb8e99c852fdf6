"""From a final checkpoint record to a model that scores raw rows without any server, and the proof that it is the same.

`python -m elastrec.trainers.export` is the evaluator pod. Nothing in an exported model is pickled.
"""
