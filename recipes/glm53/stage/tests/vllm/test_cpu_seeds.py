from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def runner(unfinished, seeds):
    made = CPUModelRunner.__new__(CPUModelRunner)
    made.input_batch = SimpleNamespace(
        num_reqs=len(unfinished),
        generators={i: torch.Generator().manual_seed(seed) for i, seed in seeds.items()},
    )
    made.discard_request_mask = SimpleNamespace(np=np.array([*unfinished, True, True]))
    return made


def test_only_finished_prompts_draw_from_their_generators(monkeypatch):
    seen = []

    def sampled(self, grammar_output):
        seen.append((sorted(self.input_batch.generators), grammar_output))
        return "tokens"

    monkeypatch.setattr(GPUModelRunner, "sample_tokens", sampled)
    made = runner([False, True, True], {0: 5, 1: 6})
    before = dict(made.input_batch.generators)
    assert made.sample_tokens("grammar") == "tokens"
    assert seen == [([0], "grammar")]
    assert made.input_batch.generators == before


def test_the_generators_are_back_after_an_error(monkeypatch):
    def broken(self, grammar_output):
        raise RuntimeError("no memory")

    monkeypatch.setattr(GPUModelRunner, "sample_tokens", broken)
    made = runner([True], {0: 5})
    before = dict(made.input_batch.generators)
    with pytest.raises(RuntimeError, match="no memory"):
        made.sample_tokens(None)
    assert made.input_batch.generators == before
