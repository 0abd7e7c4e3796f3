"""OpenVINO GenAI's continuous batching, of which several prompts are as many requests."""

import numpy as np
import openvino
import openvino_genai
from protocol import Answer, Generate, Watch, Wishes, serve

CACHE_GIB = 2


def load_openvino(wishes: Wishes) -> Generate:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GIB
    scheduler.max_num_batched_tokens = 2048
    scheduler.max_num_seqs = wishes.sequences
    scheduler.enable_prefix_caching = wishes.prefix_caching
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        wishes.model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": wishes.threads}
    )
    asked = 0

    def generate(prompts: list[list[int]], answers: list[int]) -> Answer:
        nonlocal asked
        watch = Watch()
        handles = []
        for prompt, count in zip(prompts, answers, strict=True):
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
            ids = openvino.Tensor(np.array([prompt], np.int64))
            handles.append(pipeline.add_request(asked, ids, config))
            asked += 1
        said: list[list[int]] = [[] for _ in prompts]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for number, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        watch.token_came(number)
                        said[number] += output.generated_ids
        return watch.answer(said)

    return generate


serve(load_openvino)
