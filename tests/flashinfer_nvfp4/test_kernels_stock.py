"""The kernels in Triton's interpreter on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

from decode_checks import DecodeChecks
from encode_checks import EncodeChecks
from gather_checks import ContextChecks, GatherChecks
from kernel_calls import Kernels, interpreter, missing
from prefill_checks import PrefillChecks
from stage_checks import MergeChecks, StageChecks

if why := missing():
    pytest.skip(why, allow_module_level=True)


@pytest.fixture(scope="module")
def kernels() -> Iterator[Any]:
    with interpreter() as run:
        yield Kernels("cpu", run)


class TestEncode(EncodeChecks): ...


class TestGather(GatherChecks): ...


class TestContext(ContextChecks): ...


class TestDecode(DecodeChecks): ...


class TestStage(StageChecks): ...


class TestMerge(MergeChecks): ...


class TestPrefill(PrefillChecks): ...
