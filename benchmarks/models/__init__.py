"""Whether jobs give the model that one process gives, how embeddings start, and what an export costs."""
