"""What a step costs, counted; kept beside the library, and not in its wheel."""
