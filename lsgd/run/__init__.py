"""Writers and readers of a run folder's files; reading them needs no torch."""
