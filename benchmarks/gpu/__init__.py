"""Benchmarks for the owner of a GPU, run once in resumable slices of minutes: `make gpu`."""
