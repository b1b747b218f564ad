"""UserOptions: the user's options beside `EngineOptions`; most of them may be left open."""

from dataclasses import dataclass
from typing import Literal

from lullm.config.engine_option import EngineOptions
from lullm.config.gguf.mmproj.finding import AUTO, NONE
from lullm.config.option.option import option
from lullm.config.option.sleep_after import parse_sleep_after
from lullm.config.pooling.use import Convert, Runner
from lullm.config.resolved import IdleConfig
from lullm.machine.gpu import why_auto_is_cpu

DType = Literal["auto", "float32", "bfloat16", "float16", "half", "float"]
Device = Literal["auto", "cpu", "cuda"]

DEFAULT_GPU_MEMORY_UTILIZATION = 0.9
DEFAULT_CPU_KV_SHARE = 0.25
"""The rest is for the page cache and for other programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserOptions(EngineOptions):
    """Options that `ResolvedConfig` has with another meaning or type, and those of `IdleConfig`."""

    served_model_name: str | None = option(
        None, "the name clients use for the model; default: the model as given", "model"
    )
    runner: Runner = option(
        "auto",
        "what the model gives: 'generate' next tokens, 'pooling' embeddings, scores or classes; 'auto' what its folder "
        "says",
        "model",
    )
    convert: Convert = option(
        "auto",
        "give a model for next tokens a pooling, beside them: 'embed' is the hidden state of the last token, "
        "normalized, 'rerank' a score by the tokens 'yes' and 'no' (Qwen3-Reranker); 'auto' what its folder says",
        "model",
    )
    generation_config: str = option(
        "auto",
        "default sampling parameters: 'auto' takes the model's generation_config.json, 'vllm' takes none, as in "
        "`SamplingParams`; or a folder with another file",
        "model",
        value_name="FOLDER",
    )
    override_generation_config: str | None = option(
        None,
        'some of these as JSON: {"temperature": 0.6, "max_new_tokens": 512}; the last bounds completions, and chats '
        "in Python; default: none",
        "model",
        value_name="JSON",
    )
    hf_overrides: str | None = option(
        None,
        'other values for keys of config.json, as JSON: {"rope_parameters": {"rope_type": "yarn", ...}}; default: none',
        "model",
        value_name="JSON",
    )
    mmproj: str = option(
        AUTO,
        "the GGUF file that reads pictures for a model in another one; 'auto' is the mmproj*.gguf beside it, if there "
        "is one, 'none' loads none",
        "model",
        value_name="FILE",
        off=NONE,
    )
    limit_mm_per_prompt: str | None = option(
        None,
        'most pictures, videos and sounds of a prompt, as JSON: {"image": 4, "video": 1, "audio": 1}; 0 of all loads '
        "no tower; default: 999",
        "model",
        value_name="JSON",
    )
    mm_processor_kwargs: str | None = option(
        None,
        'other values for keys of preprocessor_config.json, as JSON: {"max_pixels": 1003520}; default: none',
        "model",
        value_name="JSON",
    )
    dtype: DType = option("auto", "type of weights, activations and KV cache; 'auto' takes the checkpoint's", "model")
    max_model_len: int | None = option(
        None,
        "longest prompt and output together, in tokens; default: the model's own limit",
        "model",
        least=1,
        unit="tokens",
    )
    device: Device = option(
        "auto",
        "where the model runs; 'cuda' is a GPU; 'auto' is an NVIDIA GPU where there is one (compute capability 8.0 or "
        "more, torch for CUDA), else the CPU",
        "device",
    )
    gpu_memory_utilization: float | None = option(
        None,
        "share of a GPU's memory that may be taken, in all; on a CPU, of what is available after the weights, that the "
        "KV cache may take, and no more than twice what the running batch can use; default: "
        f"{DEFAULT_GPU_MEMORY_UTILIZATION} of a GPU's, {DEFAULT_CPU_KV_SHARE} of a CPU's",
        "device",
        above=0,
        most=1,
    )
    data_parallel_size: int = option(
        1,
        "engines with the same model, each in a process of its own on its part of the cores; requests go where their "
        "prefix is known and least work waits",
        "device",
        least=1,
    )
    async_scheduling: bool | None = option(
        None, "plan and launch the next step while one runs; default: on a GPU (a CPU gains nothing)", "device"
    )
    speculative_config: str | None = option(
        None,
        "guess the next tokens, and verify them in one step, as JSON: where the text repeats itself by "
        '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}, where it '
        'or past answers do by {"method": "suffix"}, by a smaller model of the same tokens by {"model": FOLDER, '
        '"num_speculative_tokens": 3}; fewer where they do not pay, unless "adaptive" is false; the tokens are those '
        "without it; default: none",
        "scheduling",
        value_name="JSON",
    )
    pipeline_layers: str | None = option(
        None,
        "layers of each of the pipeline's stages, like 10,12; default: as even as the bytes of weights that a step "
        "reads",
        "device",
    )
    keep_backup: bool | None = option(
        None,
        "on a GPU: keep the (pinned) host memory of a sleep, with the weights in it, so that the next sleep copies "
        "them only if they have changed; default: on",
        "sleep",
    )
    sleep_after: str | None = option(
        None,
        "when and how deep an idle engine goes to sleep by itself, like 60s:1,10m:disk (depths: 1 or ram, disk, 2); it "
        "needs an engine with a thread of its own; default: never",
        "idle",
    )
    auto_wake: bool | None = option(
        None, "a request to a sleeping engine wakes it and waits; default: on with a sleep_after", "idle"
    )
    wake_timeout: float = option(
        300.0, "seconds a request waits for the engine to wake up", "idle", above=0, unit="seconds"
    )
    max_num_wake_waiting: int = option(512, "most requests that may wait for the engine to wake up", "idle", least=1)

    @property
    def place(self) -> Literal["cpu", "cuda"]:
        """Where the model runs: `device`, with this machine's answer for 'auto'."""
        if self.device == "auto":
            return "cuda" if why_auto_is_cpu() is None else "cpu"
        return self.device

    @property
    def idle(self) -> IdleConfig:
        """The options of an idle engine with a thread of its own."""
        return IdleConfig(
            rungs=() if self.sleep_after is None else parse_sleep_after(self.sleep_after),
            wakes_by_request=self.sleep_after is not None if self.auto_wake is None else self.auto_wake,
            wake_timeout=self.wake_timeout,
            max_num_wake_waiting=self.max_num_wake_waiting,
        )
