import ast
import inspect

from vllm.distributed import kv_events
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import worker


def test_blocks_are_published_with_the_medium_that_routers_know():
    published = [
        keyword.value
        for node in ast.walk(ast.parse(inspect.getsource(worker)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "BlockStored"
        for keyword in node.keywords
        if keyword.arg == "medium"
    ]
    assert published
    assert {eval(ast.unparse(value), vars(worker)) for value in published} == {kv_events.MEDIUM_CPU} == {"CPU"}
