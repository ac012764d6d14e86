"""The CUDA kernels in the hands of the real FlashInfer."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flashinfer.jit.core", reason="needs flashinfer-python 0.7.2.post1 to 0.7.4: pip install it")

from flashinfer_nvfp4.cuda_arch import ARCHITECTURES, SOURCES
from flashinfer_nvfp4.cuda_build import jit_spec


def test_flashinfer_describes_the_build_with_our_sources_and_flags() -> None:
    """Whether the sources compile is the business of test_cuda_build.py."""
    spec = jit_spec(ARCHITECTURES["sm_100a"])

    assert spec.name.startswith("flashinfer_nvfp4_sm_100a_")
    assert [Path(source).name for source in spec.sources] == list(SOURCES)
    assert "-gencode=arch=compute_100a,code=sm_100a" in spec.extra_cuda_cflags
    assert "-use_fast_math" not in spec.extra_cuda_cflags
