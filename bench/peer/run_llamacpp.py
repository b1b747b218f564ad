"""llama.cpp through llama-cpp-python, as `bench/cpu.py` runs it: one stream. --model: a GGUF file."""

import itertools

from protocol import parse_arguments, run

args = parse_arguments(__doc__)

import llama_cpp  # noqa: E402

options = {"n_batch": 2048, "n_ubatch": 512, "verbose": False} | args.option
llama = llama_cpp.Llama(
    args.model, n_ctx=args.max_model_len, n_threads=args.threads, n_threads_batch=args.threads, **options
)


def generate(prompts, output_len):
    (prompt,) = prompts
    llama.reset()
    return sum(1 for _ in itertools.islice(llama.generate(prompt, temp=0.0), output_len))


run(args, generate, llama_cpp.__version__, llama_cpp.llama_print_system_info().decode())
