"""Benchmarks of the parts of a run on this machine, with speeds compared in interleaved rounds."""
