"""Benchmarks against peers, in one interleaved run: `make bench`, see docs/why/speed.md."""
