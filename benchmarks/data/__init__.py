"""Reading logs, and what clustering and deduplication save."""
