"""The worker's half of the embeddings: routing ids to servers, the client, and modules for torch models.

`module` and `dense` need torch; `client`, `routing` and `kernels` do not. No optimiser lives here: rows are updated
where they are held.
"""
