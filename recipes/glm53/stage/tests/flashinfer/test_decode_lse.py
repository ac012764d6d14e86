import math

import pytest
import torch
from flashinfer.experimental.nvfp4_sparse_mla_decode.mma.arch import architecture_for
from flashinfer.mla import nvfp4_sparse_mla_decode

SCALE = 256**-0.5
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16
# Byte of a row that holds the scale of 16 latent elements.
SCALES = [320 + 8 * (block % 4) + block // 4 for block in range(32)]


def random_rows(count):
    """Rows of any e2m1 codes, scales up to 1 and RoPE elements up to 4, without a NaN."""
    rows = torch.randint(256, (count, 352)).to(torch.uint8)
    rows[:, 256:320] = torch.randint(0x48, (count, 64)).to(torch.uint8) | rows[:, 256:320] & 0x80
    rows[:, 320:] = torch.randint(0x38, (count, 32)).to(torch.uint8)
    return rows


def values(rows):
    """The 576 elements of rows, float64."""
    signed = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=torch.float64)
    codes = torch.stack((rows[:, :256] & 15, rows[:, :256] >> 4), -1).flatten(1).long()
    scales = rows[:, SCALES].view(FP8).double().repeat_interleave(16, 1)
    return torch.cat((signed[codes] * scales, rows[:, 256:320].contiguous().view(FP8).double()), 1)


def attention(query, rows, indices, scale=SCALE):
    """Output and log-sum-exp in float64."""
    out = torch.zeros(*query.shape[:2], 512, dtype=torch.float64)
    lse = torch.full(query.shape[:2], -math.inf, dtype=torch.float64)
    for token, slots in enumerate(indices.long()):
        keys = values(rows[slots[(slots >= 0) & (slots < len(rows))]])
        if len(keys):
            scores = query[token].double() @ keys.T * scale
            lse[token] = scores.logsumexp(-1)
            out[token] = scores.softmax(-1) @ keys[:, :512]
    return out, lse


def merged(parts):
    """Output and log-sum-exp of parts of a context, as decode context parallelism merges them."""
    outs, sums = (torch.stack([part[which].double() for part in parts]) for which in (0, 1))
    return (outs * sums.softmax(0).nan_to_num(0.0).unsqueeze(-1)).sum(0), sums.logsumexp(0)


def batch(tokens, heads, topk, count, dtype=BF16):
    """Query, rows and indices, an eighth of which are empty."""
    indices = torch.randint(-count // 8, count, (tokens, topk), dtype=torch.int32).clamp_(-1)
    return torch.randn(tokens, heads, 576).to(dtype), random_rows(count), indices


# ---- the reference ---------------------------------------------------------------------------------------------------


def element(row, i):
    """An element by the bits of its code and of its scale."""

    def e4m3(byte):
        exponent, mantissa = byte >> 3 & 15, byte & 7
        size = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
        return -size if byte & 0x80 else size

    if i >= 512:
        return e4m3(row[256 + i - 512])
    code = row[i // 2] >> 4 * (i % 2) & 15
    exponent, mantissa = code >> 1 & 3, code & 1
    size = (2 + mantissa) * 2.0 ** (exponent - 2) if exponent else mantissa / 2
    return (-size if code & 8 else size) * e4m3(row[SCALES[i // 16]])


def test_the_reference_is_the_formula_written_out():
    torch.manual_seed(0)
    query, rows, indices = batch(2, 3, 32, 24)
    out, lse = attention(query, rows, indices)
    keys = [[element(row, i) for i in range(576)] for row in rows.tolist()]
    for token, picked in enumerate(indices.tolist()):
        picked = [slot for slot in picked if slot >= 0]
        for head, q in enumerate(query[token].tolist()):
            weights = [math.exp(SCALE * math.fsum(map(float.__mul__, q, keys[slot]))) for slot in picked]
            total = math.fsum(weights)
            assert lse[token, head].item() == pytest.approx(math.log(total), rel=1e-12)
            for i in (0, 17, 511):
                right = math.fsum(w * keys[slot][i] for w, slot in zip(weights, picked, strict=True)) / total
                assert out[token, head, i].item() == pytest.approx(right, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("ranks", [2, 4])
def test_parts_merge_to_the_whole_by_their_log_sum_exp(ranks):
    """A token's keys may all be on one rank, and a token may have none."""
    torch.manual_seed(ranks)
    query, rows, indices = batch(4, 5, 64, 96)
    indices[1] -= indices[1] % ranks
    indices[2] = -1
    parts = [attention(query, rows, indices.masked_fill(indices % ranks != rank, -1)) for rank in range(ranks)]
    for found, right in zip(merged(parts), attention(query, rows, indices), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


# ---- what is refused -------------------------------------------------------------------------------------------------


def call(**changes):
    given = {
        "query": torch.zeros(2, 20, 576, dtype=BF16),
        "kv_cache": torch.zeros(4, 64, 352, dtype=torch.uint8),
        "indices": torch.zeros(2, 64, dtype=torch.int32),
        "bmm1_scale": SCALE,
        "backend": "mma",
        "return_lse": True,
    }
    return nvfp4_sparse_mla_decode(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"query": torch.zeros(2, 16, 576)}, r"query float32 \[2, 16, 576\].*float8_e4m3fn or bfloat16"),
        ({"query": torch.zeros(2, 16, 512, dtype=BF16)}, r"\[any, any, 576\]"),
        ({"query": torch.zeros(2, 129, 576, dtype=BF16)}, "heads=129.*1 to 128 heads"),
        ({"query": torch.zeros(2, 576, 16, dtype=BF16).mT}, "query with strides"),
        ({"kv_cache": torch.zeros(4, 64, 352)}, "cache float32"),
        ({"kv_cache": torch.zeros(64, 352, dtype=torch.uint8).expand(4, 64, 352)}, "must not overlap"),
        ({"indices": torch.zeros(2, 64, dtype=torch.int64)}, r"indices int64.*allowed: int32 \[2, any\]"),
        ({"indices": torch.zeros(3, 64, dtype=torch.int32)}, r"indices int32 \[3, 64\]"),
        ({"indices": torch.zeros(2, 48, dtype=torch.int32)}, "topk=48.*multiple of 32 keys"),
        ({"bmm1_scale": math.nan}, "scale=nan.*finite scales"),
        ({"bmm2_scale": math.inf}, "out_scale=inf.*finite scales"),
        ({"num_ctas_per_token": 17}, "num_ctas=17"),
        ({"out": torch.zeros(2, 20, 512)}, r"out float32.*allowed: bfloat16 \[2, 20, 512\]"),
        ({"out": torch.zeros(2, 20, 576, dtype=BF16)[..., :512]}, "out with strides.*contiguous"),
        ({}, "all tensors on one cuda device"),
        ({"kv_cache": torch.zeros(2, 2, 64, 352, dtype=torch.uint8)}, "all tensors on one cuda device"),
        ({"backend": "tensor"}, "backend='tensor' is unknown"),
    ],
)
def test_arguments_that_fit_no_launch_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        call(**({"return_lse": False} if "backend" in changes else {}), **changes)


@pytest.mark.parametrize("backend", ["cuda", "cake"])
def test_the_other_backends_have_no_log_sum_exp(backend):
    with pytest.raises(NotImplementedError, match=f"backend='{backend}'.*backend='mma' returns one"):
        call(backend=backend)


@pytest.mark.parametrize("capability", [(8, 0), (10, 1), (12, 1)])
def test_a_device_without_kernels_is_refused(capability):
    with pytest.raises(ValueError, match=r"compute capability .* 9\.0, 10\.0, 10\.3, 12\.0"):
        architecture_for(capability)


# ---- the kernel ------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU of compute capability 9.0, 10.0, 10.3 or 12.0")
    try:
        arch = architecture_for(torch.cuda.get_device_capability())
    except ValueError as refused:
        pytest.skip(str(refused))
    torch.manual_seed(1)
    return arch


def decoded(query, rows, indices, **more):
    given = [tensor.cuda() for tensor in (query, rows, indices)]
    found = nvfp4_sparse_mla_decode(*given, SCALE, backend="mma", return_lse=True, **more)
    return [tensor.cpu() for tensor in found]


def check(found, right):
    assert (found[0].double() - right[0]).norm() <= 0.005 * right[0].norm()
    torch.testing.assert_close(found[1].double(), right[1], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", [FP8, BF16])
@pytest.mark.parametrize("ctas", [None, *range(1, 17)])
def test_every_cluster_size_attends_as_float64(gpu, ctas, dtype):
    if ctas and ctas > gpu.most_ctas:
        pytest.skip(f"{gpu.name} shares a token among {gpu.most_ctas} thread blocks at most")
    given = batch(5, 16, 2048, 4096, dtype)
    check(decoded(*given, num_ctas_per_token=ctas), attention(*given))


@pytest.mark.parametrize("heads", [1, 8, 20, 64, 128])
@pytest.mark.parametrize("topk", [32, 96, 2048])
def test_any_number_of_heads_and_keys_attends_as_float64(gpu, heads, topk):
    given = batch(3, heads, topk, 2048)
    check(decoded(*given), attention(*given))


def test_parts_of_the_kernel_merge_to_its_whole(gpu):
    query, rows, indices = batch(7, 64, 512, 1024, FP8)
    indices[3] = -1
    parts = [decoded(query, rows, indices.masked_fill(indices % 2 != rank, -1)) for rank in range(2)]
    whole = decoded(query, rows, indices)
    found = merged(parts)
    assert not whole[0][3].any()
    assert whole[1][3].eq(-math.inf).all()
    check([found[0], found[1].float()], attention(query, rows, indices))
    torch.testing.assert_close(found[1], whole[1].double(), atol=2e-4, rtol=2e-5)


def test_the_output_may_be_given_and_scaled(gpu):
    query, rows, indices = batch(4, 16, 256, 512)
    plain = decoded(query, rows, indices)
    out = torch.empty(4, 16, 512, dtype=BF16, device="cuda")
    scaled = decoded(query, rows, indices, out=out, bmm2_scale=-0.25)
    assert torch.equal(out.cpu(), plain[0] * -0.25)
    assert torch.equal(scaled[1], plain[1])


def test_launches_repeat_bit_for_bit_in_a_graph(gpu):
    query, rows, indices = (tensor.cuda() for tensor in batch(20, 16, 2048, 4096, FP8))

    def launch():
        return nvfp4_sparse_mla_decode(query, rows, indices, SCALE, backend="mma", return_lse=True)

    first = launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = launch()
    for _ in range(20):
        for tensor in captured:
            tensor.fill_(math.nan)
        graph.replay()
        assert all(map(torch.equal, captured, first))
