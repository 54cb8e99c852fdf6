"""Messages that several rooms use, by receiver. Only types; senders and receivers define their meaning."""
