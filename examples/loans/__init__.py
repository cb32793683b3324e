"""A bank's loan applications, from a real log: an app (`app`, `tables`), and the proof that runs it (`proof`)."""
