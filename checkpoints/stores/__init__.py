"""Where records lie: one interface, and a store per kind of place. Nothing here knows what a record is."""
