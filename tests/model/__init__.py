"""The consumption protocol as an executable specification; see README.md."""
