"""Specs as text: YAML and JSON in and out, units, URIs, schema and CustomResourceDefinition; decoders for threads."""
