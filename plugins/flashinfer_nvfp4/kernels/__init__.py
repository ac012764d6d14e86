"""Triton kernels of NVFP4 rows: write (`encode`), read back (`gather`), and attend to (`decode`), one module each.

Importing this package imports nothing; its modules import torch and Triton. They run on NVIDIA GPUs of compute
capability 9.0 and later, and anywhere in Triton's interpreter (``TRITON_INTERPRET=1``, set before Triton is imported).
Slots are numbered as vLLM does it, block * block size + place in the block, so they do not depend on how far apart
the blocks of a cache lie.
"""
