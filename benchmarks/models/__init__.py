"""Benchmarks of models: equality with the training in one process, initial values of embeddings, costs of an export."""
