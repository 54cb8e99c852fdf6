"""Scripts that start real servers for tests and for users' trials. The product does not import them."""
