"""Keys that fail, for a while or for ever: an app (`app`, `tables`), and the proof that runs it (`proof`)."""
