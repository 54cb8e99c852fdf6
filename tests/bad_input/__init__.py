"""Wrong job files, data, models and calls; each is refused before anything starts, with a helpful message."""
