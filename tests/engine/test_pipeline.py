"""The layers cut into stages, with a worker for each: the same tokens as one worker's."""

from thread_workers import use_threads

from lullm import LLM, SamplingParams


def test_it_runs(qwen3_folder, monkeypatch):
    params = SamplingParams(temperature=0.0, max_tokens=12)
    prompts = [{"prompt_token_ids": [1, 2, 3, 4]}, {"prompt_token_ids": [5, 6, 7] * 9}]
    plain = [
        o.outputs[0].token_ids for o in LLM(str(qwen3_folder), num_gpu_blocks_override=64).generate(prompts, params)
    ]
    use_threads(monkeypatch)
    llm = LLM(str(qwen3_folder), num_gpu_blocks_override=64, pipeline_parallel_size=2)
    assert [o.outputs[0].token_ids for o in llm.generate(prompts, params)] == plain
    assert [w.loaded.model.config.layers for w in llm.llm_engine.model_executor.workers] == 0
