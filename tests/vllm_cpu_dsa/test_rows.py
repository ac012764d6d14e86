"""Which row format serves which ``--kv-cache-dtype``, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from vllm_cpu_dsa import rows
from vllm_cpu_dsa.errors import Unsupported
from vllm_cpu_dsa.rows import GROUP, PlainRows, RowFormat, row_format

Installed = Callable[..., None]


class Tiny:
    name = "tiny"
    cache_dtypes = ("nvfp4_ds_mla",)
    row_bytes = 352

    def encode(self, latent: Any, rope: Any) -> Any: ...
    def decode(self, rows: Any) -> Any: ...


class Rival(Tiny):
    name = "rival"


class Half:
    name = "half"
    cache_dtypes = ("fp8",)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    """Declare classes of this module as the installed row formats."""

    def declare(**named: str) -> None:
        entries = [EntryPoint(name, value, GROUP) for name, value in named.items()]
        monkeypatch.setattr(rows, "entry_points", lambda group: [e for e in entries if e.group == group])
        rows.row_formats.cache_clear()

    yield declare
    rows.row_formats.cache_clear()


def test_plain_rows_satisfy_the_protocol() -> None:
    assert isinstance(PlainRows(), RowFormat)


def test_each_cache_dtype_leads_to_the_format_that_serves_it(installed: Installed) -> None:
    installed(plain="vllm_cpu_dsa.rows:PlainRows", tiny=f"{__name__}:Tiny")

    assert {dtype: found.name for dtype, found in rows.row_formats().items()} == {
        "auto": "plain",
        "bfloat16": "plain",
        "float16": "plain",
        "nvfp4_ds_mla": "tiny",
    }
    assert row_format("nvfp4_ds_mla").row_bytes == 352
    assert row_format("nvfp4_ds_mla") is row_format("nvfp4_ds_mla")


def test_an_unserved_dtype_is_refused_with_the_installed_formats(installed: Installed) -> None:
    installed(plain="vllm_cpu_dsa.rows:PlainRows")

    with pytest.raises(Unsupported) as refused:
        row_format("fp8")
    assert str(refused.value) == (
        "--kv-cache-dtype fp8: no installed row format writes and reads such rows on the CPU; allowed: "
        "auto (plain), bfloat16 (plain), float16 (plain). Choose one of these, or install the plugin that "
        "brings the format."
    )


def test_a_missing_entry_point_group_is_named(installed: Installed) -> None:
    installed()

    with pytest.raises(Unsupported, match="no package declares an entry point in vllm_cpu_dsa.row_formats"):
        row_format("auto")


def test_two_formats_for_one_dtype_are_refused(installed: Installed) -> None:
    installed(tiny=f"{__name__}:Tiny", rival=f"{__name__}:Rival")

    with pytest.raises(Unsupported, match="'tiny' and 'rival': both serve --kv-cache-dtype nvfp4_ds_mla"):
        row_format("nvfp4_ds_mla")


def test_an_incomplete_format_is_refused(installed: Installed) -> None:
    installed(half=f"{__name__}:Half")

    with pytest.raises(Unsupported, match="'half'.*lacks parts.*name, cache_dtypes, row_bytes, encode"):
        row_format("fp8")
