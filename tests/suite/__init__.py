"""How the tests are run: which of them side by side, which may be left out, and what a complete run needs."""
