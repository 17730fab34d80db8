"""One run of many, as a study or a search trains it: in a folder that its fingerprint names."""
