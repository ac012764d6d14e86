"""Every topic on a copy of what is installed: it applies, its tests pass, and it does what the plugin does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from staged_tree import linked, run_plugin_tests, run_python, run_tests, staged

from flashinfer_nvfp4.plan import plan_clusters
from glm53.local.processes import free_ports
from glm53.stage.native import SUFFIXES
from glm53.stage.page import states
from glm53.stage.place import repository
from glm53.stage.releases import installed
from glm53.stage.same import same_native
from glm53.stage.staging import Change, State, changes, examine, write
from glm53.stage.topic import Topic
from glm53.stage.topics import TOPICS
from glm53.stage.tree import Tree

PROJECTS = [name for name in ("vllm", "nixl", "dynamo") if find_spec(name) is not None]
FLASHINFER = os.environ.get("GLM53_FLASHINFER_TREE")

pytestmark = pytest.mark.skipif(not PROJECTS, reason="needs vLLM or NIXL: make test")

TRITON = repository() / ".venv" / "triton"
SITE = Path(sys.prefix) / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


@pytest.fixture(scope="module", params=PROJECTS)
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A pristine copy of an installed project."""
    return linked(request.param, SITE, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def done(tree: Tree) -> list[Change]:
    """All topics of the project, written into the copy one after another."""
    for topic in of(tree):
        verdict = examine(topic, tree)
        assert verdict.state is State.NEEDED, verdict
        assert verdict.tested
    for topic in TOPICS:
        if topic.project == tree.project and topic not in of(tree) and not topic.comes_after(tree.version):
            assert examine(topic, tree).state is State.UPSTREAM, topic.id
    (tree.root / "pyproject.toml").write_text('[tool.ruff.lint]\nselect = ["E", "F", "I"]\n')
    return staged(tree)


def of(tree: Tree) -> list[Topic]:
    """The topics for this release; those for older ones must be in it."""
    topics = [topic for topic in TOPICS if topic.project == tree.project]
    return [topic for topic in topics if topic.window.contains(tree.version)]


def test_every_topic_applies_beside_the_others_and_a_second_time_changes_nothing(
    tree: Tree, done: list[Change]
) -> None:
    assert done
    for topic in of(tree):
        assert changes(topic, tree) == []
        assert examine(topic, tree).state is State.STAGED


def test_no_line_of_an_edit_is_upstreams_own(tree: Tree, done: list[Change]) -> None:
    """Edits name places and bring our code; a longer line that upstream has, too, would be a quotation."""
    for topic in of(tree):
        for edit in topic.edits_for(tree.version):
            before = next(change.before for change in done if change.path == tree.path(edit.file))
            theirs = {line.strip() for line in (before or "").splitlines()}
            ours = {line.strip() for line in getattr(edit, "code", "").splitlines()}
            assert not {line for line in ours & theirs if len(line) > 45}, topic.id


def test_what_is_staged_passes_a_linter_and_a_formatter_with_lines_of_88(tree: Tree, done: list[Change]) -> None:
    """Also where files are edited: no finding, and no change by the formatter, that the release does not have."""
    ruff = str(Path(sys.executable).with_name("ruff"))

    def said(command: str, text: str, path: Path) -> int:
        given = [ruff, *command.split(), "--stdin-filename", str(path), "-"]
        found = subprocess.run(given, input=text, cwd=tree.root, capture_output=True, text=True, check=False)
        return len(found.stdout.splitlines())

    new = [str(change.path) for change in done if change.before is None and change.path.suffix == ".py"]
    for command in (["check", "--quiet"], ["format", "--check", "--quiet"]):
        linted = subprocess.run([ruff, *command, *new], cwd=tree.root, capture_output=True, text=True, check=False)
        assert linted.returncode == 0, linted.stdout
    for change in done:
        if change.before is not None:
            for what in ("check --quiet --output-format concise", "format --quiet --diff"):
                before, after = (said(what, text, change.path) for text in (change.before, change.after))
                assert after <= before, change.path


def test_the_staged_tests_pass_where_none_of_our_packages_can_be_imported(tree: Tree, done: list[Change]) -> None:
    tests = [str(change.path) for change in done if change.path.name.startswith("test_")]
    _pass(run_tests(tree, *(one for one in tests if not one.endswith("_kernels.py"))))


@pytest.mark.skipif(not TRITON.is_dir(), reason=f"needs Triton in {TRITON}: make test")
def test_the_staged_tests_of_kernels_pass_in_tritons_interpreter(tree: Tree, done: list[Change]) -> None:
    """In a process of their own: with Triton in sight vLLM takes other ways on the CPU."""
    if tree.project.name != "vllm":
        pytest.skip("vLLM's topics")
    _pass(run_tests(tree, *(str(one.path) for one in done if one.path.name.endswith("_kernels.py")), triton=TRITON))


def _pass(ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout
    assert "failed" not in ran.stdout


@pytest.mark.skipif(
    FLASHINFER is None,
    reason="needs an unpacked FlashInfer 0.7.4 (700 MB): name its folder in GLM53_FLASHINFER_TREE",
)
def test_flashinfers_topics_apply_in_any_order_and_do_what_the_plugin_does(tmp_path: Path) -> None:
    """The moved kernel is the plugin's but for comments, and launches are planned alike."""
    from flashinfer_nvfp4.cuda_arch import ARCHITECTURES, CSRC
    from flashinfer_nvfp4.cuda_decode import plan_ctas

    tree, other = (linked("flashinfer", Path(FLASHINFER or ""), tmp_path / name) for name in ("one", "other"))
    written = {change.path for change in staged(tree)}
    for topic in reversed(of(other)):
        write(changes(topic, other))
    assert [examine(topic, tree).state for topic in of(tree)] == [State.STAGED] * len(of(tree))
    for path in written:
        assert (other.root / path.relative_to(tree.root)).read_bytes() == path.read_bytes()
    ran = run_tests(tree, *[str(path) for path in written if path.name.startswith("test_")])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    moved = [path for path in written if path.suffix in SUFFIXES]
    assert moved
    assert all(same_native(path.read_text(), (CSRC / path.name).read_text()) for path in moved)
    sizes, at_once = {8: 16, 6: 22, 5: 28, 4: 36, 3: 46}, {1: 152, 2: 76, 3: 46, 4: 36, 5: 28, 6: 22, 7: 20, 8: 16}
    code = (
        "from flashinfer.experimental.nvfp4_sparse_mla_decode.backend import select_num_ctas\n"
        "from flashinfer.experimental.nvfp4_sparse_mla_decode.mma.arch import ARCHITECTURES\n"
        "from flashinfer.experimental.nvfp4_sparse_mla_decode.mma.decode import plan_ctas\n"
        f"print([select_num_ctas(t, k, {sizes}) for k in (512, 1024, 2048) for t in range(1, 200)])\n"
        "archs = ARCHITECTURES.values()\n"
        f"print([plan_ctas(t, k, {at_once}, a) for a in archs for k in (32, 2048) for t in range(200)])"
    )
    clusters, blocks = map(json.loads, run_python(tree, "-c", code).stdout.splitlines())
    assert clusters == [plan_clusters(tokens, topk, sizes) for topk in (512, 1024, 2048) for tokens in range(1, 200)]
    archs = ARCHITECTURES.values()
    assert blocks == [plan_ctas(t, topk, at_once, arch) for arch in archs for topk in (32, 2048) for t in range(200)]


ORACLE = "vllm_cpu_dsa/test_oracle_stock.py::test_greedy_tokens_are_those_of_transformers"
#: The plugins' own tests by the topics that have moved their modules: some here, all with GLM53_STAGED_TESTS=all. Not
#: among them is what stays in the plugin, such as formats that other packages bring and its settings.
OWN_TESTS: dict[tuple[str, ...], tuple[list[str], list[str]]] = {
    ("cpu-sparse-mla",): (
        [f"{ORACLE}[glm_moe_dsa-4]"],
        [
            *(f"vllm_cpu_dsa/test_{name}_stock.py" for name in ("attention", "indexer", "quantize", "oracle", "paths")),
            *(f"vllm_cpu_dsa/test_{name}_stock.py" for name in ("index_share", "mtp")),
        ],
    ),
    ("nvfp4-scales",): (
        ["flashinfer_nvfp4/test_stock_writer_stock.py"],
        [f"flashinfer_nvfp4/test_{name}_stock.py" for name in ("stock_writer", "codec", "codec_inputs")],
    ),
    ("latent-fold",): (
        ["flashinfer_nvfp4/test_fold_error_stock.py"],
        [f"flashinfer_nvfp4/test_{name}_stock.py" for name in ("fold_error", "fold_exponent", "latent_folds")],
    ),
    ("nvfp4-sparse-mla",): (
        [f"flashinfer_nvfp4/test_{name}_plan.py" for name in ("split", "prefill")],
        [
            *(f"flashinfer_nvfp4/test_{name}_plan.py" for name in ("split", "prefill")),
            "flashinfer_nvfp4/test_kernels_stock.py",
            *(
                f"flashinfer_nvfp4/test_backend_attention_stock.py::test_{name}"
                for name in (
                    "attention_is_that_of_float64_over_the_rows_it_wrote",
                    "shards_of_a_context_merge_to_the_whole_by_stocks_own_merge",
                    "a_shard_without_any_chosen_key_adds_nothing",
                    "the_models_fused_path_writes_the_codecs_rows_and_gives_attention_the_same_as_before",
                    "vllms_own_layer_is_built_on_it_and_gets_stocks_metadata",
                )
            ),
            *(
                f"flashinfer_nvfp4/test_staging_stock.py::test_{name}"
                for name in (
                    "a_batch_decodes_where_rows_lie_and_prefills_from_stages",
                    "requests_are_what_the_host_knows_of_a_batch",
                    "glm_stages_186_thousand_rows_in_a_twentieth_of_three_gigabytes",
                    "without_flashinfer_prefill_is_direct",
                )
            ),
        ],
    ),
    ("glm-parser",): (
        ["dynamo_structural_tags/test_parser_defects.py"],
        [f"dynamo_structural_tags/test_parser_{name}.py" for name in ("defects", "outputs", "values", "turns", "ends")],
    ),
    ("store-namespace",): (["mooncake_tier/test_tier_keys.py"], ["mooncake_tier/test_tier_weights.py"]),
}


def _own(tree: Tree, topics: tuple[str, ...], chosen: list[str]) -> None:
    if tree.project.name != "vllm":
        pytest.skip("vLLM's topics")
    paths = [str(repository() / "tests" / one) if "/" in one else one for one in chosen]
    ran = run_plugin_tests(tree, topics, *paths)
    print(ran.stdout)  # how many there were: pytest -rP
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "passed" in ran.stdout


def test_some_of_the_plugins_own_tests_pass_on_what_was_moved(tree: Tree, done: list[Change]) -> None:
    """In one process, because each has vLLM to import."""
    _own(
        tree,
        tuple(one for topics in OWN_TESTS for one in topics),
        [one for some, _ in OWN_TESTS.values() for one in some],
    )


@pytest.mark.skipif(os.environ.get("GLM53_STAGED_TESTS") != "all", reason="minutes: set GLM53_STAGED_TESTS=all")
@pytest.mark.parametrize("topics", OWN_TESTS, ids=lambda topics: "+".join(topics))
def test_the_plugins_own_tests_pass_on_what_was_moved(tree: Tree, done: list[Change], topics: tuple[str, ...]) -> None:
    _own(tree, topics, OWN_TESTS[topics][1])


ROWS = """
import json, os, sys
import msgspec
sys.path.insert(0, sys.argv[1])
from row_workers import Deployment, Side
both = Deployment(sys.argv[2], drafts=2, speculative=("dflash", "draft", 4), stock=sys.argv[3] == "staged")
prefill, decode = Side(both, "kv_producer"), Side(both, "kv_consumer")
source, destination = [3, 4, 5, 6, 20, 21, 30, 31], [10, 11, 12, 13, 14, 15, 1, 2]
prefill.fill(1), decode.fill(2)
result = decode.read(prefill.address, destination, source)
assert decode.digests(destination) == prefill.digests(source)
told = msgspec.msgpack.decode(decode.worker.xfer_handshake_metadata.agent_metadata_bytes)
print("rows", json.dumps([result, decode.registered, told["packed_member_layouts"]]), flush=True)
os._exit(0)
"""
LOOPBACK = {
    "UCX_NET_DEVICES": "lo",
    "UCX_TLS": "tcp",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


@pytest.mark.skipif(not {"vllm", "nixl"} <= set(PROJECTS), reason="needs vLLM and NIXL: make test")
def test_a_staged_pull_moves_the_plugins_rows_and_the_drafts_pages_inside_of_them(
    tree: Tree, done: list[Change], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real NIXL agents on loopback, and every page compared."""
    if tree.project.name != "vllm":
        pytest.skip("vLLM's topics")
    pytest.importorskip("safetensors", reason="needs the demo extra: make test")
    from glm53.model import make

    make(tmp_path / "model")
    for name, value in LOOPBACK.items():
        monkeypatch.setenv(name, value)
    arguments = ["-c", ROWS, str(repository() / "tests" / "vllm_blhnc"), str(tmp_path / "model")]
    found = []
    for ran in (
        subprocess.run(
            [sys.executable, *arguments, "plugin"],
            env={**os.environ, "VLLM_CPU_DSA": "1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_ports(1, "127.0.0.1")[0])},
            capture_output=True,
            text=True,
            check=False,
        ),
        run_python(tree, *arguments, "staged", VLLM_NIXL_SIDE_CHANNEL_PORT=str(free_ports(1, "127.0.0.1")[0])),
    ):
        line = re.search(r"^rows (.*)$", ran.stdout, re.MULTILINE)
        assert line, ran.stdout + ran.stderr
        found.append(json.loads(line[1]))
    plugin, staged_rows = found
    assert staged_rows == plugin
    ((descriptors, _),) = staged_rows[0]["telemetry"]
    assert (descriptors, len(staged_rows[1]["regions"]), len(staged_rows[2])) == (3, 1, 7)


BLOCKS = """
import json, random, sys
import torch
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
try:
    from vllm.v1.core.run_queue import hand_out_runs
except ModuleNotFoundError:
    from vllm_blhnc import patches
    from vllm_blhnc.allocation import hand_out_runs
    patches.follow_the_requests_blocks()

spec = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=1, dtype=torch.float32)
groups = [KVCacheGroupSpec(["kv"], spec)]
manager = KVCacheManager(KVCacheConfig(num_blocks=400, kv_cache_tensors=[], kv_cache_groups=groups),
                         max_model_len=1 << 16, max_in_flight_tokens=1 << 16, scheduler_block_size=4,
                         hash_block_size=4, enable_caching=False)
hand_out_runs(manager.block_pool, 0)
rng, live, ids = random.Random(7), {}, []
single = manager.coordinator.single_type_managers[0]
for step in range(600):
    if live and rng.random() < 0.3:
        name = rng.choice(sorted(live))
        del live[name]
        single.free(name)
    else:
        name = rng.choice(sorted(live) or ["r0"]) if rng.random() < 0.6 else f"r{step}"
        wanted = live.get(name, 0) + rng.randrange(1, 30)
        if (wanted - live.get(name, 0)) // 4 + 2 > manager.block_pool.get_num_free_blocks():
            continue
        live[name] = wanted
        ids.append([block.block_id for block in single.allocate_new_blocks(name, wanted, wanted)])
print("ids", json.dumps(ids))
"""


@pytest.mark.skipif("vllm" not in PROJECTS, reason="needs vLLM: make test")
def test_staged_blocks_are_the_plugins_blocks_id_by_id(tree: Tree, done: list[Change]) -> None:
    if tree.project.name != "vllm":
        pytest.skip("vLLM's topic")
    ours = subprocess.run([sys.executable, "-c", BLOCKS], capture_output=True, text=True, check=False)
    theirs = run_python(tree, "-c", BLOCKS)
    ids = [re.search(r"^ids (.*)$", ran.stdout, re.MULTILINE) for ran in (ours, theirs)]
    assert all(ids), ours.stderr + theirs.stderr
    plugin, upstream = (json.loads(found[1]) for found in ids if found)
    assert sum(map(len, plugin)) > 1000
    assert plugin == upstream


def test_the_page_tells_what_is_so_on_this_line() -> None:
    page = (repository() / "docs" / "upstream.md").read_text()
    here = installed()
    for topic in TOPICS:
        section = page.split(f"### `{topic.id}`: {topic.title}")[1].split("### ")[0]
        assert f"- Gone when: {topic.reasons().remove_when}" in section
        for version, state in states(topic, here).items():
            assert f"{version} {state}" in section
