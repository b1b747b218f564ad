"""OpenVINO GenAI with continuous batching, as `bench/cpu.py` runs it. --model: an exported model's folder.

`ONEDNN_MAX_CPU_ISA` restricts it as `LULLM_CPU_ISA` restricts lullm. Below AVX512_CORE_BF16, and on processors without
products of bfloat16, it has no bfloat16 attention and is run in float32.
"""

from protocol import kv_cache_gb, multiplies_bf16, parse_arguments, run

args = parse_arguments(__doc__)

import numpy as np  # noqa: E402
import openvino  # noqa: E402
import openvino_genai  # noqa: E402

scheduler = openvino_genai.SchedulerConfig()
scheduler.cache_size = kv_cache_gb(args)
scheduler.max_num_batched_tokens = 2048
scheduler.dynamic_split_fuse = True
scheduler.enable_prefix_caching = False
properties = {
    "INFERENCE_PRECISION_HINT": "bf16" if multiplies_bf16() else "f32",
    "INFERENCE_NUM_THREADS": args.threads,
} | args.option
pipeline = openvino_genai.ContinuousBatchingPipeline(args.model, scheduler, "CPU", properties)


def generate(prompts, output_len):
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = output_len, True, False
    inputs = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
    results = pipeline.generate(inputs, [config] * len(prompts))
    return sum(len(result.m_generation_ids[0]) for result in results)


run(args, generate, openvino_genai.__version__, openvino.__version__)
