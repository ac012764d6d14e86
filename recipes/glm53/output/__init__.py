"""Rendered text: shell and YAML that mean what was given, and folders written whole."""
