"""vLLM's CPU build, as `bench/cpu.py` runs it. --option NAME=JSON: any option of vLLM's LLM.

In float32 where the processor has no products of bfloat16: 0.02 TFLOP/s of these on an EPYC of Zen 3, whose products of
float32 reach 0.15.
"""

import os

from protocol import kv_cache_gb, multiplies_bf16, parse_arguments, run


def main() -> None:
    args = parse_arguments(__doc__)
    cpus = sorted(os.sched_getaffinity(0))[: args.threads]
    os.environ |= {
        "OMP_NUM_THREADS": str(args.threads),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cpus)),
        "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gb(args)),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    import vllm
    from vllm import LLM, SamplingParams

    dtype = "bfloat16" if multiplies_bf16() else "float32"
    options = {"dtype": dtype, "max_num_seqs": 64, "enable_prefix_caching": False} | args.option
    llm = LLM(args.model, max_model_len=args.max_model_len, **options)

    def generate(prompts, output_len):
        params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    run(args, generate, vllm.__version__)


if __name__ == "__main__":  # its engine is a process of its own, which imports this file again
    main()
