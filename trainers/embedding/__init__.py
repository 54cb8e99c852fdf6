"""The worker's half of the embeddings: routing ids to servers, the client, and modules for torch models.

`module` and `dense` need torch; `client`, `routing` and `kernels` do not. There is no optimiser here, because servers
update rows.
"""
