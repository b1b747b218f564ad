"""What tests of several rooms share.

- `folder/`: model folders as people download them, written without lullm: tiny checkpoints, quantized ones, GGUF files.
- `model/`: the families under test, the golden reference beside transformers, greedy answers to compare, adapters.
- `published/`: the `config.json` of repositories that people download, at toy size, beside transformers' own model.
- `template/`: chat templates: popular styles, hostile ones, and those with calls of tools.
- `audio/`: tiny checkpoints that hear, beside transformers' model and feature extractor; sounds as files, or sent.
- `vision/`: tiny checkpoints that see pictures, beside transformers' model and processor.
- `engine/`: prompts, the private parts of an engine, observers of `AsyncLLMEngine`, what several workers keep equal,
  scenes that many kinds of prompts play.
- `sched/`: plans and sequence groups by hand, a simulated worker, and random workloads over it.
- `fleet/`: a fleet in simulated time.
- `worker/`: workers that are fakes, threads of this process, members of a group, or processes of their own.
- `device/`: fakes of an accelerator and its driver, digests, and Triton's interpreter; a rehearsal of what only a GPU
  runs. `rehearsed/`: what each process of it loads first, and toy sizes.
- `ready_process.py`: processes that start in milliseconds, forked from one that has imported torch. `running.py`: those
  that end with their test. `pairs.py`: products of parameters, thinned.
"""
