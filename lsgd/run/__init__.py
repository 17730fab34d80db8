"""What a run leaves in its folder, written and read; reading needs no torch."""
