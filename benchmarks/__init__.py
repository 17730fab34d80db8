"""The benchmarks of lsgd's own speed, which are beside the library and not in its wheel."""
