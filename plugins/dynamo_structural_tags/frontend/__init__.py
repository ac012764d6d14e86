"""Dynamo's frontend with this plugin's chat engine: ``python -m dynamo_structural_tags.frontend <stock arguments>``."""
