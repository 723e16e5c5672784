"""Measures fedbc against its peers and against the machine's limit; `python -m benchmarks.run --help`."""
