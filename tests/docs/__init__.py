"""The docs: pages that are written by programs are current, links lead somewhere, commands do what the pages say."""
