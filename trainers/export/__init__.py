"""The export of a final checkpoint record as a model that scores raw rows without servers, and the check of its
equality.

`python -m elastrec.trainers.export` is the evaluator pod. Nothing in an exported model is pickled.
"""

from elastrec.platform.specs.environment import disable_usage_data

disable_usage_data()
