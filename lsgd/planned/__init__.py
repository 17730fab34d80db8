"""The planned runs of a study or a search, one recipe and seed each, and their launch."""
