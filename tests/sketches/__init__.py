"""Workloads and parts as small as they can be: what a reader may copy to begin his own.

Each goes through the page (lsgd/train.py) and the step as they are; tests/distributed/
test_sketches.py shows that the run is the same on any number of processes, and after a restart.
"""
