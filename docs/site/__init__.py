"""What the site of the documentation is made with."""
