"""Training: models, embedding client, worker, parameter server, evaluation and export.

May import `elastrec.checkpoints` and `elastrec.platform.{specs,transport,data}`. torch and torchrec are used in models,
embedding, worker and export; the parameter server never imports them.
"""
