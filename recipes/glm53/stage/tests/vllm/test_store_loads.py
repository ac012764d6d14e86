import contextlib
from types import SimpleNamespace

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.scheduler import MooncakeStoreScheduler


class Client:
    """A store that has every block, always."""

    def __init__(self):
        self.lookups = 0

    def lookup(self, request_id, num_tokens, *args, **kwargs):
        self.lookups += 1
        return SimpleNamespace(hit_length=num_tokens // 16 * 16)


def scheduler():
    made = MooncakeStoreScheduler.__new__(MooncakeStoreScheduler)
    made.__dict__.update(
        enable_lookup=True,
        enable_partial_hash_hits=False,
        lookup_async=False,
        client=Client(),
        _asked_to_load=set(),
        _block_size=16,
        _hash_block_size=16,
    )
    return made


def test_a_request_that_was_told_to_load_is_not_matched_again():
    made, request = scheduler(), SimpleNamespace(request_id="a", num_tokens=64)
    made._asked_to_load.add("a")
    assert made.get_num_new_matched_tokens(request, 0) == (0, False)
    assert made.client.lookups == 0


def test_it_is_remembered_from_the_load_to_the_end_of_the_request():
    made = scheduler()
    made._asked_to_load.add("other")
    request = SimpleNamespace(request_id="a", num_tokens=64)
    for tokens, expected in ((0, {"other"}), (48, {"other", "a"})):
        # The rest of the method needs a connector; what is remembered comes first.
        with contextlib.suppress(AttributeError, KeyError):
            made.update_state_after_alloc(request, None, tokens)
        assert made._asked_to_load == expected
    with contextlib.suppress(AttributeError):
        made.build_connector_meta(SimpleNamespace(finished_req_ids={"a"}))
    assert made._asked_to_load == {"other"}
