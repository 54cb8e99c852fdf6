"""Measurements of a master about its job: speeds, starts, growth of tables, use of time. This room makes no
decisions."""
