"""NVFP4 rows for the MLA cache (``--kv-cache-dtype nvfp4_ds_mla``): 352 bytes a token and layer.

Importing the package does nothing; its parts are plain functions, listed in docs/nvfp4.md.
"""
