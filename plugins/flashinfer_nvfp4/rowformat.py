"""The 352-byte row of ``nvfp4_ds_mla``: what one token stores in one layer's MLA cache.

====== ===== ===========================================================================================
offset bytes content
====== ===== ===========================================================================================
0      256   512 e2m1 codes of the latent; byte i holds element 2i in its low and 2i + 1 in its high half
256    64    64 e4m3 codes of the RoPE part, unscaled
320    32    32 e4m3 scales, one per 16 latent elements; that of block b at byte 320 + 8 (b mod 4) + b div 4
====== ===== ===========================================================================================

A latent element is its e2m1 value times the scale of its block; there is no outer scale. The scales lie in the
order in which a FlashMLA thread needs them: thread t of four reads the eight bytes from 320 + 8t on, the scales of
the blocks t, t + 4, ... t + 28. Seen as a table of 4 rows and 8 columns, they are the transpose of their natural
order.

Sources: vLLM's ``nvfp4_ds_mla`` writers and FlashMLA's ``V32_NVFP4_FP8ROPE`` reader for the offsets and the order;
OCP MX 1.0, section 5.3.3, for e2m1; OCP OFP8 1.0, section 5, for e4m3. Element formats in short: e2m1 is a sign, two
exponent bits with bias 1 and one mantissa bit, without infinity or NaN; e4m3 is a sign, four exponent bits with bias
7 and three mantissa bits, without infinity, and NaN only as 0x7F and 0xFF.
"""

from __future__ import annotations

__all__ = [
    "BLOCK",
    "BLOCKS",
    "CODE_BYTES",
    "E2M1_MAX",
    "E2M1_VALUES",
    "E4M3_MAX",
    "E4M3_MAX_CODE",
    "E4M3_MIN",
    "LATENT",
    "ROPE",
    "ROPE_OFFSET",
    "ROW_BYTES",
    "SCALE_OFFSET",
    "SCALE_TABLE",
    "scale_offset",
]

LATENT = 512
ROPE = 64
BLOCK = 16
"""Latent elements that share a scale."""
BLOCKS = LATENT // BLOCK

CODE_BYTES = LATENT // 2
ROPE_OFFSET = CODE_BYTES
SCALE_OFFSET = ROPE_OFFSET + ROPE
ROW_BYTES = SCALE_OFFSET + BLOCKS

SCALE_TABLE = (4, 8)
"""Rows and columns of the 32 scale bytes; the transpose has the scales in the order of their blocks."""

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Value of the codes 0 to 7; code + 8 is its negative."""
E2M1_MAX = 6.0

E4M3_MAX = 448.0
E4M3_MAX_CODE = 0x7E
E4M3_MIN = 2.0**-9
"""The smallest positive value, code 0x01."""


def scale_offset(block: int) -> int:
    """Byte of the row that holds the scale of latent elements ``16 * block`` to ``16 * block + 15``."""
    return SCALE_OFFSET + 8 * (block % 4) + block // 4
