"""The rules of the papers, each as a pure function."""
