"""EngineOptions: the options that mean the same with every model and on every device.

A resolved configuration takes them as the user said them. Names are vLLM's where they mean the same.
"""

from dataclasses import dataclass
from typing import Literal

from lullm.config.option.option import option

KVCacheDType = Literal["auto", "int8", "fp8", "fp8_e4m3"]
ModelImpl = Literal["auto", "lullm", "transformers"]
LoadFormat = Literal["auto", "safetensors", "mistral", "dummy"]
SafetensorsLoadStrategy = Literal["lazy", "eager"]
Quantization = Literal[None, "int8", "int4"]
SchedulingPolicy = Literal["fcfs", "priority"]
PreemptionMode = Literal["recompute", "swap", "auto"]
LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]
AttentionBackend = Literal["auto", "triton", "torch"]

MAX_THREADS = 256
MAX_STEP_TOKENS = 2**20
"""Buffers of a step are allocated ahead: 10^9 tokens would take 7.5 GiB for their ids alone."""
MAX_SWAP_SPACE_GIB = 2**20
MAX_LORAS = 256
MAX_CPU_LORAS = 2**16
MAX_LORA_RANK = 512
DEFAULT_WORKER_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The common options of `EngineConfig` and `ResolvedConfig`."""

    model: str = option("demo", "local folder, hub id, or 'demo' for the bundled model", "model")
    revision: str | None = option(None, "branch, tag or commit of a hub id", "model")
    tokenizer: str | None = option(None, "folder or hub id of the tokenizer; default: the model's", "model")
    chat_template: str | None = option(
        None, "the Jinja template of conversations: a file, or the template itself; default: the model's", "replies"
    )
    split_special_tokens: bool | None = option(
        None,
        "special tokens that a prompt spells are text, so that no user can forge a turn; default: on for what "
        "conversations say, off for plain prompts",
        "model",
    )
    model_impl: ModelImpl = option(
        "auto",
        "whose code computes the model: lullm's own, or that of an installed transformers over lullm's attention; "
        "'auto' takes the latter for architectures that lullm has no family for",
        "model",
    )
    load_format: LoadFormat = option(
        "auto",
        "'dummy' fills deterministic random weights instead of reading them; 'safetensors' and 'mistral' are 'auto', "
        "which finds what the folder holds",
        "model",
        advice="leave it out for GGUF files and quantized checkpoints, which are read as they are",
    )
    safetensors_load_strategy: SafetensorsLoadStrategy = option(
        "lazy",
        "'lazy': on a CPU the first steps may read matrices in the checkpoint's mapped files, while threads copy them; "
        "'eager' copies all weights before the engine is ready, so that its files may then be changed or lost",
        "model",
        advice="leave it out: a folder's files are fetched into the page cache ahead in any case ('prefetch'), and "
        "torchao's checkpoints are read as they are ('torchao')",
    )
    quantization: Quantization = option(
        None,
        "bits of the matrices, quantized as the checkpoint is read; embedding and head take 8 bits either way, "
        "activations and KV cache keep dtype; default: as dtype says",
        "model",
        advice="leave it out for GGUF files and quantized checkpoints, which are read as they are",
    )
    language_model_only: bool = option(
        False, "load the text model of a checkpoint that reads pictures, without its tower", "model"
    )
    allowed_local_media_path: str | None = option(
        None,
        "folder whose pictures conversations may name by file:// URLs; default: none, so pictures come as data: URLs",
        "model",
        value_name="FOLDER",
    )
    allowed_media_domains: tuple[str, ...] = option(
        (),
        "host that pictures and sounds of conversations may be fetched from by http:// and https:// URLs, '*' for any "
        "of the public internet; may be repeated (default: none)",
        "model",
        value_name="HOST",
    )
    seed: int | None = option(
        0, "seed of the engine, from which requests without one draw theirs; None ('none') is random", "model", least=0
    )

    enable_prompt_embeds: bool = option(
        False, "take prompts as rows of embeddings (`prompt_embeds`), from callers and over HTTP", "prompts"
    )
    enable_prompt_adapter: bool = option(
        False,
        "put the rows of prompt adapters before prompts (`prompt_adapter_request`, or their names as models of the "
        "server)",
        "prompts",
    )
    max_prompt_adapters: int = option(
        8,
        "prompt adapters whose rows stay in memory; others are read from their folders when a request needs them",
        "prompts",
        least=1,
        most=MAX_CPU_LORAS,
    )
    max_prompt_adapter_token: int = option(
        0, "most rows of a prompt adapter; 0: as many as fit into max_model_len", "prompts", least=0, unit="tokens"
    )

    enable_lora: bool = option(
        False, "compute requests with LoRA adapters (`lora_request`, or their names as models of the server)", "LoRA"
    )
    max_loras: int = option(
        1, "most adapters in one step, each with memory of its own", "LoRA", least=1, most=MAX_LORAS
    )
    max_lora_rank: int = option(
        16, "highest rank of an adapter; the memory of `max_loras` grows with it", "LoRA", least=1, most=MAX_LORA_RANK
    )
    max_cpu_loras: int | None = option(
        None,
        "adapters that host memory keeps, those in use included; others are read from their folders when a request "
        "needs them; default: as many as `max_loras`",
        "LoRA",
        least=1,
        most=MAX_CPU_LORAS,
    )

    threads: int | None = option(
        None,
        "CPU threads that a step uses; default: OMP_NUM_THREADS if it is set, else the cores that the affinity mask "
        "and the CPU quota allow",
        "device",
        least=1,
        most=MAX_THREADS,
    )
    attention_backend: AttentionBackend = option(
        "auto",
        "which version of attention runs: 'auto' is the device's fastest, 'torch' torch's own over gathered keys and "
        "values (decode steps are not recorded), 'triton' lullm's kernels on a GPU",
        "device",
    )
    batch_invariant: bool = option(
        False,
        "insist on the same bits whatever the batch: on a CPU with native ops they are anyway, elsewhere the engine is "
        "refused; on a GPU it selects slower kernels",
        "device",
    )
    enforce_eager: bool = option(
        False,
        "never record decode steps and replay them (CUDA graphs on a GPU, one native call per step on a CPU); the "
        "tokens are the same",
        "device",
    )
    tensor_parallel_size: int = option(1, "workers that share the matrices of every layer", "device", least=1)
    enable_expert_parallel: bool = option(
        False, "workers that share the layers have whole experts, in place of a part of each", "device"
    )
    pipeline_parallel_size: int = option(
        1, "stages into which the layers are cut, each with workers of its own", "device", least=1
    )
    distributed_executor_backend: str | type | None = option(
        None,
        "who runs the workers: 'uni', one in this process; 'mp', a process for each, on this machine; 'ray', on any "
        "number of machines; 'external_launcher', one in each process that torchrun or a trainer has started; or an "
        "executor of your own, as a class or 'package.module:Class'; default: 'uni' for one worker, 'mp' for several",
        "device",
    )
    worker_timeout: float = option(
        DEFAULT_WORKER_TIMEOUT_S,
        "seconds without a sign of life after which a worker process counts as lost, and the engine ends, and so for "
        "the process of an engine; one that has died is noticed at once",
        "device",
        above=0,
        unit="seconds",
    )
    restart_workers: int = option(
        0,
        "how many times within an hour lost worker processes are started again; running requests go on from their "
        "tokens",
        "device",
        least=0,
    )
    step_timeout: float = option(
        900.0,
        "seconds after which a step that worker processes have not finished counts as hung, and the engine ends",
        "device",
        above=0,
        unit="seconds",
    )
    worker_extension_cls: str | type | None = option(
        None,
        "a class whose methods collective_rpc calls on every worker, with the worker as self; itself, or as "
        "'package.module:Class'; default: none",
        "device",
    )

    kv_cache_dtype: KVCacheDType = option(
        "auto",
        "'int8' (the quicker on a CPU; a scale per token and head) and 'fp8' ('fp8_e4m3'; a scale per layer and head, "
        "the checkpoint's or 1) halve the memory of a 16-bit KV cache; 'auto' leaves it as dtype says",
        "KV cache",
    )
    calculate_kv_scales: bool = option(
        False, "take the scales of an fp8 KV cache from the first batch, if the checkpoint has none", "KV cache"
    )
    block_size: int = option(16, "tokens per KV block", "KV cache", least=1)
    kv_cache_memory_bytes: int | None = option(
        None,
        "memory of the KV cache, in bytes or like 512MiB; default: by gpu_memory_utilization",
        "KV cache",
        least=1,
        unit="bytes",
    )
    num_gpu_blocks_override: int | None = option(None, "number of KV blocks, instead of measuring", "KV cache", least=1)
    swap_space: float = option(
        4.0,
        "GiB of host memory for KV blocks that are swapped out, and for cached ones that the KV cache has no room for; "
        "never more blocks than the KV cache has; 0: nothing is swapped",
        "KV cache",
        least=0,
        most=MAX_SWAP_SPACE_GIB,
    )
    enable_prefix_caching: bool = option(True, "share the KV of equal prompt prefixes", "KV cache")
    watermark: float = option(
        0.01, "share of the KV blocks that admission leaves free for running sequences", "KV cache", least=0, below=1
    )

    max_num_seqs: int = option(128, "most sequences in one step", "scheduling", least=1, most=MAX_STEP_TOKENS)
    max_num_batched_tokens: int = option(
        2048, "most tokens in one step (the chunk size)", "scheduling", least=1, most=MAX_STEP_TOKENS, unit="tokens"
    )
    enable_chunked_prefill: bool = option(
        True,
        "mix chunks of prompts with decodes in one step; otherwise prompts go first, whole, which needs "
        "max_num_batched_tokens of at least max_model_len",
        "scheduling",
    )
    delay_factor: float = option(
        0.0, "without chunked prefill: let prompts gather for this share of the last prompt step", "scheduling", least=0
    )
    scheduling_policy: SchedulingPolicy = option(
        "fcfs", "order of waiting requests; 'priority': lower values first, then arrival", "scheduling"
    )
    preemption_mode: PreemptionMode = option(
        "auto",
        "what happens to requests that must give their KV blocks back: 'swap' moves the blocks to host memory, "
        "'recompute' computes them again, 'auto' is what is cheaper by measured speeds",
        "scheduling",
    )

    max_logprobs: int = option(
        20, "most log-probabilities per position a request may ask for; -1: all", "log-probabilities", least=-1
    )
    logprobs_mode: LogprobsMode = option(
        "raw_logprobs", "log-probabilities before or after penalties, temperature and filters", "log-probabilities"
    )

    tool_call_parser: str | None = option(
        None,
        "how the model writes calls of tools (hermes, qwen3_coder, llama3_json, mistral, ...), 'template': learned "
        "from its chat template, or 'none': they are text; default: found in its chat template",
        "replies",
    )
    reasoning_parser: str | None = option(
        None,
        "how the model writes its thoughts (qwen3, deepseek_r1, mistral, ...), or 'none': they are text; default: "
        "found in its chat template",
        "replies",
    )
    think: bool | None = option(
        None, "whether the model thinks where a request does not say; default: as its chat template has it", "replies"
    )
    default_chat_template_kwargs: str | None = option(
        None,
        'the chat template\'s variables where a request does not say them, as JSON: {"enable_thinking": false}; '
        "default: none",
        "replies",
        value_name="JSON",
    )

    enable_sleep_mode: bool = option(False, "allow sleep and wake-up", "sleep")
    sleep_dir: str | None = option(
        None, "folder for what must survive a sleep; default: the system's folder for temporary files", "sleep"
    )
    verify_wake: bool = option(True, "compare checksums of weights and KV cache after waking", "sleep")
    pin_backup: bool = option(
        False,
        "on a GPU: take the (pinned) host memory of the first sleep in the background after the start, so that this "
        "sleep only copies",
        "sleep",
    )

    @property
    def num_workers(self) -> int:
        """Workers that share one model."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def takes_rows(self) -> bool:
        """Whether rows may stand in place of tokens that no picture has."""
        return self.enable_prompt_embeds or self.enable_prompt_adapter

    @property
    def num_kept_loras(self) -> int:
        """`max_cpu_loras`, or its default."""
        return self.max_cpu_loras or self.max_loras

    @property
    def executor_backend(self) -> str | type:
        """`distributed_executor_backend`, or its default."""
        return self.distributed_executor_backend or ("uni" if self.num_workers == 1 else "mp")
