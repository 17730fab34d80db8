"""What proves lsgd's own speed; kept beside the library, and not in its wheel."""
