"""Shared helpers of tests: synthetic data, jobs and run folders, and processes that start them."""
