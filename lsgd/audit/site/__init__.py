"""The folder that is on the PYTHONPATH of an audited command, for its sitecustomize."""
