import inspect

import pytest
import torch
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON
from vllm.utils.cpu_triton_utils import _compute_slot_mapping_kernel_impl
from vllm.v1.worker.block_table import BlockTable, ComputeSlotMappingKernel

pytestmark = pytest.mark.skipif(HAS_TRITON or not current_platform.is_cpu(), reason="the CPU's own function")


def test_it_takes_what_the_kernel_takes():
    kernel = ComputeSlotMappingKernel.kernel
    names = getattr(kernel, "arg_names", None) or inspect.signature(kernel).parameters
    assert tuple(inspect.signature(_compute_slot_mapping_kernel_impl).parameters) == tuple(names)


def test_a_tables_tokens_get_the_slots_of_their_blocks():
    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()
    table = BlockTable(
        block_size=4,
        max_num_reqs=2,
        max_num_blocks_per_req=3,
        max_num_batched_tokens=16,
        pin_memory=False,
        device=torch.device("cpu"),
        cp_kv_cache_interleave_size=1,
    )
    table.add_row([5, 2], 0)
    table.add_row([7, 1, 3], 1)
    table.commit_block_table(2)
    starts = torch.tensor([0, 3, 5], dtype=torch.int32)
    table.compute_slot_mapping(2, starts, torch.tensor([3, 4, 5, 0, 9]))
    assert table.slot_mapping.gpu[:5].tolist() == [23, 8, 9, 28, 13]
