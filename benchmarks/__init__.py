"""Side-by-side measurements against other implementations: ``python -m benchmarks``."""
