import json
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm.config import StructuredOutputsConfig
from vllm.v1 import structured_output
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

TAG = json.dumps(
    {
        "type": "structural_tag",
        "format": {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"},
    }
)


@pytest.fixture
def manager(monkeypatch):
    vocab = {one: at for at, one in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    monkeypatch.setattr(structured_output, "cached_tokenizer_from_config", lambda **fields: tokenizer)
    compiled = []
    compile_grammar = XgrammarBackend.compile_grammar

    def noted(self, kind, text, *args, **fields):
        compiled.append((self, kind, text))
        return compile_grammar(self, kind, text, *args, **fields)

    monkeypatch.setattr(XgrammarBackend, "compile_grammar", noted)

    def configured(*tags, backend="auto", skip=False):
        model = SimpleNamespace(
            skip_tokenizer_init=skip,
            get_vocab_size=lambda: len(tokenizer),
            hf_config=SimpleNamespace(model_type="glm"),
        )
        return SimpleNamespace(
            model_config=model,
            scheduler_config=SimpleNamespace(max_num_seqs=4),
            parallel_config=SimpleNamespace(distributed_executor_backend="external_launcher"),
            structured_outputs_config=StructuredOutputsConfig(backend=backend, warmup_structural_tags=list(tags)),
            speculative_config=None,
        )

    def make(*tags, **fields):
        return StructuredOutputManager(configured(*tags, **fields))

    make.compiled, make.configured = compiled, configured
    return make


def ask(manager):
    sampling = SimpleNamespace(structured_outputs=SimpleNamespace(_backend="xgrammar"), all_stop_token_ids=None)
    wanted = SimpleNamespace(structured_output_key=(StructuredOutputOptions.STRUCTURAL_TAG, TAG), grammar=None)
    manager.grammar_init(SimpleNamespace(request_id="r", sampling_params=sampling, structured_output_request=wanted))
    return wanted.grammar


def test_the_first_request_gets_the_backend_that_knows_the_tags(manager):
    made = manager(TAG)
    ((backend, kind, text),) = manager.compiled
    assert (kind, text) == (StructuredOutputOptions.STRUCTURAL_TAG, TAG)
    assert made.backend is None
    grammar = ask(made)
    assert made.backend is backend
    assert [one for one, *_ in manager.compiled] == [backend, backend]
    assert grammar.accept_tokens("r", made.tokenizer.encode("<a>x</a>"))


def test_without_tags_nothing_is_made_before_the_first_request(manager):
    made = manager()
    assert manager.compiled == []
    ask(made)
    assert [one for one, *_ in manager.compiled] == [made.backend]


def test_a_tag_that_does_not_compile_ends_the_start(manager):
    config = manager.configured('{"type": "structural_tag", "format": {"type": "unknown"}}')
    with pytest.raises(Exception, match="unknown"):
        StructuredOutputManager(config)
    assert len(manager.compiled) == 1


def test_what_cannot_compile_tags_is_refused(manager):
    with pytest.raises(ValueError, match="compiled by xgrammar.*'guidance'"):
        manager(TAG, backend="guidance")
    with pytest.raises(ValueError, match="need the tokenizer"):
        manager(TAG, skip=True)
