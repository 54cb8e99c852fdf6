"""Jobs of real processes that change while they train."""
