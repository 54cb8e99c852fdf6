"""Screenshots for the documentation, taken in Chromium from a running stack."""
