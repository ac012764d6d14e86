"""Records as one Parquet file, for trainers that read columns. Needs pyarrow, the extra ``capture``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rl_capture.whole_file import whole_file

__all__ = ["COLUMNS", "NoPyarrow", "write"]

#: Records in memory at a time.
_BATCH = 256

#: Column -> its type, as pyarrow names it. `sampling`, `calls` and `spans` are JSON.
COLUMNS: dict[str, str] = {
    "request": "string",
    "choice": "int32",
    "session": "string",
    "model": "string",
    "adapter": "string",
    "started": "float64",
    "ended": "float64",
    "prompt_tokens": "int32",
    "prompt_sha256": "string",
    "prompt_ids": "list<int32>",
    "output_ids": "list<int32>",
    "logprobs": "list<float32>",
    "logprobs_mode": "string",
    "masked_prompt": "int32",
    "masked_output": "int32",
    "finish": "string",
    "stop": "string",
    "weights_base": "string",
    "weights_begin": "string",
    "weights_end": "string",
    "weights_epoch_begin": "int32",
    "weights_epoch_end": "int32",
    "weights_spans": "string",
    "sampling": "string",
    "calls": "string",
    "text_prompt": "string",
    "text_output": "string",
}


class NoPyarrow(RuntimeError):
    """Parquet was asked for, and pyarrow is not installed."""


def write(records: Iterable[dict[str, Any]], path: Path) -> int:
    """Write the records to a new file, whole or not at all; returns how many.

    Raises `NoPyarrow`; what reading the records raises, and OSError, leave no file.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise NoPyarrow(
            f"--to parquet needs pyarrow, which is not installed ({error}). Run `pip install pyarrow`, or "
            "`pip install 'glm53-blackwell[capture]'`, on the machine that exports; serving needs none. "
            "--to jsonl works without."
        ) from error
    schema = pyarrow.schema([(name, _type(pyarrow, kind)) for name, kind in COLUMNS.items()])
    written = 0
    with (
        whole_file(path) as part,
        pyarrow.parquet.ParquetWriter(part, schema, compression="zstd") as writer,
    ):
        for batch in _batches(map(row, records)):
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
            written += len(batch)
    return written


def row(record: dict[str, Any]) -> dict[str, Any]:
    """One record by columns; what a trainer filters by is a column of its own."""
    prompt, output, weights = record["prompt"], record["output"], record["weights"]
    text = record.get("text") or {}
    stop = record["stop"]
    columns = {
        **{name: record[name] for name in ("request", "choice", "session", "model", "adapter", "started", "ended")},
        "prompt_tokens": prompt["tokens"],
        "prompt_sha256": prompt["sha256"],
        "prompt_ids": prompt["ids"],
        "output_ids": output["ids"],
        "logprobs": output["logprobs"],
        "logprobs_mode": output["logprobs_mode"],
        "masked_prompt": record["masked"]["prompt"],
        "masked_output": record["masked"]["output"],
        "finish": record["finish"],
        "stop": None if stop is None else str(stop),
        **{f"weights_{name}": weights[name] for name in ("base", "begin", "end")},
        "weights_epoch_begin": weights["epoch"][0],
        "weights_epoch_end": weights["epoch"][1],
        "weights_spans": None if weights["spans"] is None else json.dumps(weights["spans"]),
        "sampling": json.dumps(record["sampling"]),
        "calls": None if record["calls"] is None else json.dumps(record["calls"]),
        "text_prompt": text.get("prompt"),
        "text_output": text.get("output"),
    }
    return {name: _utf8(value) if isinstance(value, str) else value for name, value in columns.items()}


def _utf8(value: str) -> str:
    """The same text; halves of surrogate pairs, which JSON can hold and Parquet cannot, as their escapes."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


def _type(pyarrow: Any, kind: str) -> Any:
    inner = kind.removeprefix("list<").removesuffix(">")
    found = getattr(pyarrow, inner)()
    return found if inner == kind else pyarrow.list_(found)


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while batch := list(itertools.islice(rows, _BATCH)):
        yield batch
