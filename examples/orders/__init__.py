"""Orders and stock: an app as you would write one (`app`, `tables`), and the demo that runs it (`demo`)."""
