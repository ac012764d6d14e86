"""How much device memory prefill may use beside the cache, and how it is divided: numbers only, standard library.

The workspace is one budget for everything that staging needs (`flashinfer_nvfp4.prefill_plan`): the staged rows, and
of a pass over some tokens the index lists, their lengths, and what the attention kernel allocates, its queries, its
outputs and, where parts are merged, its log-sum-exps. The first three lie in one buffer that is kept; the others come
and go. Tokens whose keys come in parts carry their running result from part to part, in float32: the output's own
memory has the upper half of it, and the lower half lies at the end of the rows, of which fewer fit then.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from flashinfer_nvfp4.errors import LaunchRefused, SettingRefused
from flashinfer_nvfp4.plan import PREFILL_WORKSPACE_BYTES
from flashinfer_nvfp4.rowformat import LATENT

__all__ = ["PAGE", "SETTING", "Layout", "StagedRows", "chosen_workspace", "least_workspace", "plan_layout"]

SETTING = "FLASHINFER_NVFP4_PREFILL_MIB"
"""Environment variable of every worker: MiB of workspace, 0 for prefill that stages nothing."""
MOST_MIB = 1 << 20
PASS_HEADS = 8192
"""Heads times tokens of a pass: several waves of thread blocks on every device."""
LEAST_PASS = 64
PAGE = 64
"""Rows of which the capacity is a multiple: kernels view staged rows as pages."""
ALIGNMENT = 256
"""Bytes to multiples of which the areas of the buffer are rounded up."""


def chosen_workspace() -> int:
    """Bytes that the environment allows, `PREFILL_WORKSPACE_BYTES` where it says nothing.

    Raises `SettingRefused` for anything but a whole number of MiB from 0 to 1,048,576.
    """
    value = os.environ.get(SETTING, "").strip()
    if not value:
        return PREFILL_WORKSPACE_BYTES
    if not (value.isascii() and value.isdigit()) or int(value) > MOST_MIB:
        raise SettingRefused(
            f"{SETTING}={value!r}",
            "it is no amount of memory",
            f"a whole number of MiB from 0 to {MOST_MIB}, and unset for {PREFILL_WORKSPACE_BYTES >> 20}",
            "Correct it in the environment of every worker",
        )
    return int(value) << 20


@dataclass(frozen=True)
class StagedRows:
    """What the kernel that reads staged rows needs.

    ``row_bytes``: 576 (FP8) or 1152 (BF16). ``lse``: whether it returns the log-sum-exp, without which a request
    cannot be staged in parts. Of each token and head it allocates ``lse_bytes`` for that, beside the 4 bytes of the
    result, and ``query_bytes`` for the query in its own dtype.
    """

    row_bytes: int
    lse: bool
    lse_bytes: int = 0
    query_bytes: int = 0


@dataclass(frozen=True)
class Layout:
    """A workspace divided: ``capacity`` staged rows, and passes of up to ``pass_tokens`` tokens of ``heads`` heads.

    The buffer holds the rows, then the index lists, then their lengths.
    """

    topk: int
    heads: int
    staged: StagedRows
    capacity: int
    pass_tokens: int

    @property
    def carried_bytes(self) -> int:
        """Bytes of a token that is carried from part to part: lower halves [heads, 512], log-sum-exps [heads]."""
        return self.heads * (2 * LATENT + 4)

    def carried_at(self, tokens: int) -> int:
        """Byte of the buffer where what ``tokens`` tokens carry begins: it ends where the rows end."""
        return self.indices_at - _aligned(tokens * self.carried_bytes)

    def rows_beside(self, tokens: int) -> int:
        """Staged rows that fit while ``tokens`` tokens are carried from part to part."""
        return max(self.carried_at(tokens), 0) // (PAGE * self.staged.row_bytes) * PAGE

    @property
    def indices_at(self) -> int:
        """Byte of the buffer where the index lists, int32 [pass_tokens, topk], begin."""
        return _aligned(self.capacity * self.staged.row_bytes)

    @property
    def counts_at(self) -> int:
        """Byte of the buffer where the lengths, int32 [pass_tokens], begin."""
        return self.indices_at + _aligned(4 * self.pass_tokens * self.topk)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffer that is kept."""
        return self.counts_at + _aligned(4 * self.pass_tokens)

    @property
    def total_bytes(self) -> int:
        """Bytes in use at once: the buffer, and what the attention kernel allocates for a pass."""
        return self.buffer_bytes + self.pass_tokens * self.heads * _output_bytes(self.staged)


def least_workspace(topk: int, heads: int, staged: StagedRows) -> int:
    """Bytes below which nothing is staged: a pass, and as many rows as one token selects."""
    return Layout(topk, heads, staged, -(-topk // PAGE) * PAGE, _pass_tokens(heads)).total_bytes


def plan_layout(workspace: int, topk: int, heads: int, staged: StagedRows) -> Layout | None:
    """Divide ``workspace`` bytes for tokens that select ``topk`` rows each and have ``heads`` heads; None for 0 bytes.

    Raises `LaunchRefused` for a workspace in which nothing can be staged, naming the least in which something can.
    """
    if topk < 1 or heads < 1 or workspace < 0:
        raise LaunchRefused(
            f"workspace={workspace}, topk={topk}, heads={heads}",
            "it describes no workspace",
            "0 bytes or more, 1 key and 1 head or more",
            "Pass the model's sizes",
        )
    if not workspace:
        return None
    least = least_workspace(topk, heads, staged)
    if workspace < least:
        raise LaunchRefused(
            f"a prefill workspace of {workspace} bytes",
            f"it does not hold {topk} rows and a pass of {_pass_tokens(heads)} tokens with {heads} heads",
            f"0, and {least} bytes or more: {-(-least >> 20)} MiB",
            f"Set {SETTING}",
        )
    smallest = Layout(topk, heads, staged, 0, _pass_tokens(heads))
    pages = (workspace - smallest.total_bytes) // (PAGE * staged.row_bytes)
    return Layout(topk, heads, staged, pages * PAGE, smallest.pass_tokens)


def _output_bytes(staged: StagedRows) -> int:
    """Bytes of a token and head that an attention kernel allocates: query, bfloat16 output, log-sum-exp."""
    return staged.query_bytes + 2 * LATENT + (4 + staged.lse_bytes if staged.lse else 0)


def _pass_tokens(heads: int) -> int:
    return max(LEAST_PASS, PASS_HEADS // heads)


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT
