"""Renderers: pure functions from a deployment to what one kind of place runs."""
