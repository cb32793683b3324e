"""What `seriatim replay` is made of: a log that is read, messages made of its rows, and their order disturbed."""
