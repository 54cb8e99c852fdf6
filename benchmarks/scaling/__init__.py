"""The throughput model, the searches for plans, and a real job scaled while it trains."""
