"""The docs: generated pages are current, links are valid, and commands do what the pages say."""
