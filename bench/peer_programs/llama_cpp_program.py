"""llama.cpp through the C interface of llama-cpp-python: prompts in batches, then one batch a token
with a row of each sequence that is not done, as its server does."""

import ctypes

import llama_cpp
import numpy as np
from protocol import Answer, Generate, Watch, Wishes, serve

BATCH_TOKENS = 2048
Row = tuple[int, int, int, bool]  # token, position, sequence, whether its logits are wanted


class Llama:
    def __init__(self, wishes: Wishes) -> None:
        llama_cpp.llama_backend_init()
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        model = llama_cpp.llama_model_load_from_file(
            wishes.model.encode(), llama_cpp.llama_model_default_params()
        )
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = wishes.sequences * wishes.context_tokens
        parameters.n_seq_max = wishes.sequences
        parameters.n_batch = BATCH_TOKENS
        parameters.n_threads = parameters.n_threads_batch = wishes.threads
        self._context = llama_cpp.llama_init_from_model(model, parameters)
        assert self._context, f"llama.cpp does not load {wishes.model}"
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        self._vocabulary_tokens = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def keep(self, sequence: int, tokens: int) -> None:
        """Forget what the sequence has beyond its first tokens."""
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_seq_rm(memory, sequence, tokens, -1)

    def decode(self, rows: list[Row]) -> dict[int, int]:
        """The greedy next token of each sequence whose logits are wanted."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for number, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[number] = token
            batch.pos[number] = position
            batch.n_seq_id[number] = 1
            batch.seq_id[number][0] = sequence
            batch.logits[number] = wanted
        failed = llama_cpp.llama_decode(self._context, batch)
        assert not failed, f"llama_decode gave {failed}"
        drawn = {}
        for number, (_, _, sequence, wanted) in enumerate(rows):
            if wanted:
                logits = llama_cpp.llama_get_logits_ith(self._context, number)
                found = np.ctypeslib.as_array(logits, (self._vocabulary_tokens,))
                drawn[sequence] = int(found.argmax())
        return drawn


def common_prefix(held: list[int], prompt: list[int]) -> int:
    return next(
        (place for place, pair in enumerate(zip(held, prompt)) if pair[0] != pair[1]),  # noqa: B905
        min(len(held), len(prompt)),
    )


def load_llama(wishes: Wishes) -> Generate:
    llama = Llama(wishes)
    # What each sequence holds: its server reuses what a slot has in common with the next prompt.
    held: dict[int, list[int]] = {}

    def generate(prompts: list[list[int]], answers: list[int]) -> Answer:
        watch = Watch()
        rows: list[Row] = []
        for sequence, prompt in enumerate(prompts):
            kept = (
                common_prefix(held.get(sequence, []), prompt[:-1]) if wishes.prefix_caching else 0
            )
            llama.keep(sequence, kept)
            rows += [
                (prompt[position], position, sequence, position == len(prompt) - 1)
                for position in range(kept, len(prompt))
            ]
        last: dict[int, int] = {}
        said: dict[int, list[int]] = {}
        for first in range(0, len(rows), BATCH_TOKENS):
            drawn = llama.decode(rows[first : first + BATCH_TOKENS])
            for sequence, token in drawn.items():
                watch.token_came(sequence)
                said[sequence] = [token]
            last |= drawn
        for place in range(1, max(answers)):
            rows = [
                (last[sequence], len(prompt) + place - 1, sequence, True)
                for sequence, prompt in enumerate(prompts)
                if place < answers[sequence]
            ]
            drawn = llama.decode(rows)
            for sequence, token in drawn.items():
                watch.token_came(sequence)
                said[sequence].append(token)
            last |= drawn
        for sequence, prompt in enumerate(prompts):
            held[sequence] = prompt + said[sequence][:-1]
        return watch.answer([said[sequence] for sequence in range(len(prompts))])

    return generate


serve(load_llama)
