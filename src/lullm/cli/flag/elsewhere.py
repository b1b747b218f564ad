"""lullm's names for flags and commands of llama.cpp, Ollama and vLLM, for errors."""

_CACHE = "the KV cache's type is --kv-cache-dtype int8, for keys and values"
_DRAFT = """it is --speculative-config '{"model": "SMALLER", "num_speculative_tokens": 3}'"""
_GPU = "--device says where the model runs, all layers of it; --tensor-parallel-size shares it between devices"
_GRAMMAR = "a request says its form (response_format, structured_outputs)"
_HUB = "the hub id is the model: ORG/NAME, or ORG/NAME:Q4_K_M for a file of it"
_LAST = "the model and the prompt stand without flags: lullm run MODEL PROMPT"
_MAPPED = "weights are always read into memory of their own; leave it out"
_PIXELS = """pixels bound the tokens of a picture: --mm-processor-kwargs '{"max_pixels": 1003520}' (docs/vision.md)"""
_ROPE = "config.json, or the GGUF file, says how positions turn"
_TEMPLATE = "chats always use the model's template; leave it out"

FLAGS: dict[str, str] = {
    **dict.fromkeys(("-ngl", "--gpu-layers", "--n-gpu-layers"), _GPU),
    **dict.fromkeys(("-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu", "-dev"), _GPU),
    **dict.fromkeys(("-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe"), _GPU),
    **dict.fromkeys(("-np", "--parallel"), "sequences that run at a time are --max-num-seqs"),
    **dict.fromkeys(("-t", "-tb", "--threads-batch"), "it is --threads, for prompts and answers"),
    "--ctx-size": "it is --max-model-len (-c), of each request",
    **dict.fromkeys(("-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"), _HUB),
    **dict.fromkeys(("-mu", "--model-url"), "fetch the file, and name it as the model"),
    **dict.fromkeys(("-p", "--prompt"), _LAST),
    **dict.fromkeys(("-f", "--file"), "a prompt from a file: lullm run MODEL - < FILE"),
    **dict.fromkeys(("-cnv", "--conversation", "-i", "--interactive"), "a conversation is `lullm chat MODEL`"),
    **dict.fromkeys(("-no-cnv", "--no-conversation"), "it is `lullm run MODEL PROMPT --raw`"),
    **dict.fromkeys(("-st", "--single-turn"), "it is `lullm run MODEL PROMPT`"),
    **dict.fromkeys(("--n-predict", "--predict"), "`run` and `chat` have --max-tokens (-n), requests max_tokens"),
    "-s": "it is --seed",
    **dict.fromkeys(("-sys", "--system-prompt"), "it is --system of `run` and `chat`, a message of a request"),
    "--repeat-penalty": "it is --repetition-penalty, over the whole text",
    **dict.fromkeys(("--jinja", "--no-jinja"), _TEMPLATE),
    "--chat-template-file": "it is --chat-template FILE",
    **dict.fromkeys(("-fa", "--flash-attn"), "attention never makes the whole matrix; leave it out"),
    **dict.fromkeys(("-b", "--batch-size", "-ub", "--ubatch-size"), "tokens of a step are --max-num-batched-tokens"),
    **dict.fromkeys(("-ctk", "--cache-type-k", "-ctv", "--cache-type-v"), _CACHE),
    **dict.fromkeys(("--mlock", "--mmap", "--no-mmap", "-dio", "--direct-io"), _MAPPED),
    **dict.fromkeys(("-a", "--alias"), "it is --served-model-name"),
    "--metrics": "/metrics is always there",
    **dict.fromkeys(("--slots", "--no-slots"), "/slots is always there, without anyone's prompts"),
    "--props": "/props is always there, and changes nothing",
    **dict.fromkeys(("--embedding", "--embeddings"), "it is --runner pooling, for models that embed"),
    **dict.fromkeys(("--rerank", "--reranking"), "it is --convert rerank, or leave it out for models that rerank"),
    "--lora": "`run` and `chat` have --lora PATH; a server takes --enable-lora --lora-modules NAME=PATH",
    **dict.fromkeys(("--lora-scaled", "--lora-init-without-apply"), "an adapter is applied as its own settings say"),
    **dict.fromkeys(("-mmu", "--mmproj-url"), "fetch the file, and name it by --mmproj FILE"),
    **dict.fromkeys(("--mmproj-auto", "--no-mmproj-auto"), "it is --mmproj auto, and --no-mmproj"),
    **dict.fromkeys(("--mmproj-offload", "--no-mmproj-offload"), "it runs where the model does; leave it out"),
    **dict.fromkeys(("--image-min-tokens", "--image-max-tokens"), _PIXELS),
    **dict.fromkeys(("-md", "--model-draft", "--draft", "--draft-max", "--spec-type"), _DRAFT),
    **dict.fromkeys(("--grammar", "--grammar-file", "-j", "--json-schema", "--format"), _GRAMMAR),
    "--reasoning-format": "it is --reasoning-parser",
    "--reasoning-budget": "it is thinking_token_budget of a request",
    **dict.fromkeys(("-to", "--timeout"), "it is --request-timeout"),
    **dict.fromkeys(("--no-webui", "--no-ui"), "it is --no-page"),
    **dict.fromkeys(("-lv", "--verbosity", "--log-disable"), "it is --log-level"),
    **dict.fromkeys(("--sleep-idle-seconds", "--keepalive"), "it is --enable-sleep-mode --sleep-after 60s:1"),
    **dict.fromkeys(("--models-dir", "--models-preset", "--models-max"), "a server serves one model"),
    **dict.fromkeys(("--rope-scaling", "--rope-scale", "--rope-freq-base", "--yarn-orig-ctx"), _ROPE),
    **dict.fromkeys(("--nowordwrap", "--hidethinking"), "`--no-think` leaves thoughts out; lines are the terminal's"),
    **dict.fromkeys(("-O", "-O0", "-O1", "-O2", "-O3", "-cc"), "nothing is compiled; leave it out"),
    **dict.fromkeys(("-ac", "--attention-config"), "it is --attention-backend"),
    "-sc": "it is --speculative-config",
    "--backend": "every server is asked as OpenAI's; --endpoint is completions or chat",
    "--base-url": "it is --url",
    "--num-prompts": "it is --num-requests",
    "--max-concurrency": "it is --concurrency",
    "--random-input-len": "it is --input-len",
    "--random-output-len": "it is --output-len",
    "--save-result": "it is --json FILE",
    "--result-filename": "it is --json FILE",
    "--quick": "a question without a conversation is `lullm run --url URL PROMPT`",
    "--model-name": "a server serves one model; leave it out",
    "--modelfile": "Modelfiles are not read",
    **dict.fromkeys(("-dcp", "-pcp"), "workers share layers, heads and experts, not contexts"),
}
"""Flag -> advice. A command with a flag of this name takes it."""

_ONE_MODEL = "a server holds the model that it was started with; end it, or let it sleep (`lullm sleep`)"

COMMANDS: dict[str, str] = {
    "complete": "`lullm run --raw --url URL PROMPT` continues a text on a running server",
    "collect-env": "it is `lullm doctor`",
    "env": "it is `lullm doctor`",
    **dict.fromkeys(("stop", "unload", "kill"), _ONE_MODEL),
    "start": "it is `lullm serve`",
    "create": "Modelfiles are not read; --override-generation-config and --chat-template say what theirs do",
    **dict.fromkeys(("cp", "push"), "models are files, and ids of the hub; copy or upload them"),
    **dict.fromkeys(("signin", "signout", "login"), "set HF_TOKEN in the environment"),
    **dict.fromkeys(("download", "install"), "it is `lullm pull MODEL`"),
    **dict.fromkeys(("remove", "delete"), "it is `lullm rm MODEL`"),
    **dict.fromkeys(("ls", "models"), "it is `lullm list`"),
    **dict.fromkeys(("generate", "cli", "ask"), "it is `lullm run MODEL PROMPT`"),
    **dict.fromkeys(("server", "launch", "up"), "it is `lullm serve MODEL`"),
    **dict.fromkeys(("status", "top"), "it is `lullm ps`"),
    **dict.fromkeys(("benchmark", "perf"), "it is `lullm bench`"),
    "help": "it is `lullm --help`, and `lullm COMMAND --help`",
    "version": "it is `lullm --version`",
}
"""Command -> advice."""

VARIABLES: dict[str, str] = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "--lora-updates",
    "VLLM_API_KEY": "LULLM_API_KEY",
    "VLLM_ATTENTION_BACKEND": "--attention-backend",
    "VLLM_BATCH_INVARIANT": "--batch-invariant",
    "VLLM_CPU_KVCACHE_SPACE": "--kv-cache-memory-bytes",
    "VLLM_CPU_OMP_THREADS_BIND": "--threads",
    "VLLM_ENABLE_RESPONSES_API_STORE": "--response-store",
    "VLLM_LOGGING_LEVEL": "--log-level",
    "VLLM_PP_LAYER_PARTITION": "--pipeline-layers",
    "VLLM_SERVER_DEV_MODE": "--enable-sleep-mode",
}
"""vLLM's variable -> the option here. The others set nothing."""
