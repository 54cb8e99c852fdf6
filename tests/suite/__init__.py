"""How tests are run: parallel streams, allowed skips, and the requirements of a complete run."""
