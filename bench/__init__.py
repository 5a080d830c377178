"""Benchmarks of kvdepot. One module a suite (`python -m bench.<suite>`, `make bench-<suite>`), one harness for all.

docs/benchmarks.md says how to read and repeat the figures.
"""
