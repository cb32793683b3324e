"""What integration tests share: an app in a folder, and programs started from it."""
