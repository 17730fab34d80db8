"""The modules that build the site of the documentation."""
