"""Messages that more than one room speaks, by who is asked. Only types: who sends them knows what they mean."""
