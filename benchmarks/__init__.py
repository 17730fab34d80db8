"""Benchmarks of lsgd's own speed, kept outside the library and its wheel."""
