"""lullm, as `bench/cpu.py` runs it. --option NAME=JSON: any option of the engine."""

from protocol import parse_arguments, run

args = parse_arguments(__doc__)

import lullm  # noqa: E402
from lullm import LLM, SamplingParams  # noqa: E402

options = {"max_model_len": args.max_model_len, "enable_prefix_caching": False, "threads": args.threads} | args.option
llm = LLM(args.model, **options)


def generate(prompts, output_len):
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    return sum(len(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False))


run(args, generate, lullm.__version__)
