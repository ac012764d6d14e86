"""One machine's master and pool: run, examined, and asked from the command line."""
