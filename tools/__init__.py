"""Scripts that start the real servers that tests and users' trials talk to. Nothing of the product imports them."""
