"""Feature groups without repeated rows (RecD): which to form, how they are formed, read and stored."""
