"""Runs a rendered deployment on this machine: starts, watches and ends its processes."""
