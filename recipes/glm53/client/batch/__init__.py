"""A file of requests sent with bounded concurrency, and a file with exactly one result for each, whatever happens."""
