"""The cache dtype of a deployment reaches real workers behind Dynamo, and 352-byte rows what NIXL moves."""

from __future__ import annotations

from pathlib import Path

import pytest
from openai import OpenAI
from stacks import deployment_for, needs_stack

from glm53.demo.cache import cache_figures
from glm53.local.stack import Stack, running_stack

pytestmark = [needs_stack, pytest.mark.timeout(900)]


def test_nvfp4_rows_are_served_and_travel_whole(model: Path, tmp_path: Path) -> None:
    engine = {"dtype": "float32", "max_model_len": 2048, "kv_cache": "64MiB", "kv_cache_dtype": "nvfp4_ds_mla"}
    with running_stack(Stack(deployment_for(model, engine=engine), tmp_path), print) as stack:
        before = len(stack.transfers())
        client = OpenAI(base_url=f"{stack.url}/v1", api_key="none", timeout=300, max_retries=0)
        answer = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Rows of 352 bytes. " * 20}], max_tokens=4
        )
        [transfer] = stack.transfers()[before:]

    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    assert transfer["blocks"] == -(-answer.usage.prompt_tokens // 64)
    assert (transfer["regions"], transfer["descriptors"]) == (1, transfer["runs"])
    assert transfer["nbytes"] == transfer["blocks"] * 64 * (4 * 352 + 3 * 132)
    figures = cache_figures(stack.deployment, [transfer])
    assert figures["bytes_per_token"] == figures["planned_bytes_per_token"]["nvfp4_ds_mla"] == 1804
