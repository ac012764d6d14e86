"""Turns what a plugin does to a stock package into a branch that the package's maintainers could review."""
