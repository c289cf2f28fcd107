"""Published results redrawn, benchmarks and the demo."""
