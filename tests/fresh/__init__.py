"""The lines of the README on bare Debian machines, as a stranger types them: `make fresh`."""
