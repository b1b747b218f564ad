"""PoolingCalls: the calls of `LLM` for vectors and scores."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lullm.config.pooling.pooler import reads_pairs
from lullm.errors import LullmError
from lullm.llm.prompt import Loras, UseTqdm, as_prompts, one_each
from lullm.types.lora.request import LoRARequest
from lullm.types.pooling.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringRequestOutput,
)
from lullm.types.pooling.params import AskedTask, PoolingParams
from lullm.types.pooling.score import Scoring
from lullm.types.request import Input, Prompt
from lullm.types.vllm_argument import VLLM_CALLS, takes_vllms

if TYPE_CHECKING:
    from lullm.engine.llm_engine import LLMEngine  # loads torch
    from lullm.engine.replica.engine import ReplicaEngine


class PoolingCalls:
    """Calls for a model that pools. Base of `LLM`."""

    llm_engine: "LLMEngine | ReplicaEngine"

    def _pool_all(
        self, prompts: Sequence[Input], params: Sequence[PoolingParams], use_tqdm: UseTqdm, loras: Loras
    ) -> list[Any]:
        """The output of each prompt, in their order."""
        raise NotImplementedError

    @takes_vllms(VLLM_CALLS)
    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: Loras = None,
        pooling_task: AskedTask | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Pool each prompt as the model does; the outputs are in their order. Blocks until all are done.

        `outputs.data` is a list of floats; of the tasks 'token_embed' and 'token_classify' a float32 tensor `[T, K]`,
        one row per token of the prompt.

        Args:
            prompts: as for `generate`.
            pooling_params: one for all, or one for each prompt.
            lora_request: one adapter for all prompts, or one or None for each.
            pooling_task: the task that is expected; None: the model's.

        Raises:
            InvalidRequestError: the model pools nothing, or does another task; a request's rows take more than 512 MiB;
                or as `generate` does.
        """
        return self._encode(as_prompts(prompts), pooling_params, use_tqdm, pooling_task, lora_request)

    @takes_vllms(VLLM_CALLS)
    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        lora_request: Loras = None,
    ) -> list[EmbeddingRequestOutput]:
        """The embedding of each prompt. Raises as `encode` does."""
        outputs = self._encode(as_prompts(prompts), pooling_params, use_tqdm, "embed", lora_request)
        return [output.of(EmbeddingOutput(output.outputs.data)) for output in outputs]

    @takes_vllms(VLLM_CALLS)
    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: Loras = None,
    ) -> list[ClassificationRequestOutput]:
        """The probability of each label, for each prompt. Raises as `encode` does."""
        outputs = self._encode(as_prompts(prompts), pooling_params, use_tqdm, "classify", lora_request)
        return [output.of(ClassificationOutput(output.outputs.data)) for output in outputs]

    @takes_vllms(VLLM_CALLS)
    def reward(
        self,
        prompts: Prompt | Sequence[Prompt],
        /,
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        lora_request: Loras = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """The rewards of each token, or of each step of a solution: `encode` with the task 'token_classify'.

        Args:
            truncate_prompt_tokens: as in `PoolingParams`, for all prompts.

        Raises as `encode` does.
        """
        listed = as_prompts(prompts)
        params = one_each("pooling_params", pooling_params or PoolingParams(), PoolingParams, len(listed))
        if truncate_prompt_tokens is not None:
            params = [replace(one, truncate_prompt_tokens=truncate_prompt_tokens) for one in params]
        return self._encode(listed, params, use_tqdm, "token_classify", lora_request)

    @takes_vllms(VLLM_CALLS)
    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRARequest | None = None,
        instruction: str | None = None,
        chat_template: str | None = None,
    ) -> list[ScoringRequestOutput]:
        """The score of each pair: one text with one, one with each of several, or pair by pair.

        A reranker reads both texts at once. With an embedding model the score is the cosine of the two embeddings.

        Args:
            instruction: the meaning of "relevant", for rerankers that take one; None: the model's default.
            chat_template: text of a template that joins a pair in place of the model's; it sees messages of the roles
                'query' and 'document', and 'system' with the instruction.

        Raises as `encode` does; also InvalidRequestError when the two sides have different lengths.
        """
        has_pairs = reads_pairs(self.llm_engine.model_config.pooler)
        scoring = Scoring(data_1, data_2, has_pairs, instruction, template=chat_template)
        return scoring.scores(self._encode(scoring.prompts, pooling_params, use_tqdm, loras=lora_request))

    def _encode(
        self,
        prompts: Sequence[Input],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None,
        use_tqdm: UseTqdm,
        task: AskedTask | None = None,
        loras: Loras = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        params = one_each("pooling_params", pooling_params or PoolingParams(), PoolingParams, len(prompts))
        outputs = self._pool_all(prompts, [one.expecting(task) for one in params], use_tqdm, loras)
        failed = next((output for output in outputs if output.finish_reason == "abort"), None)
        if failed is not None and failed.stop_reason is not None:
            raise LullmError(f"prompt {outputs.index(failed)} was aborted: {failed.stop_reason}")
        return [output if isinstance(output.outputs.data, list) else _with_tensor(output) for output in outputs]


def _with_tensor(output: PoolingRequestOutput[PoolingOutput]) -> PoolingRequestOutput[PoolingOutput]:
    """With vLLM's tensor of rows, over the memory of the array."""
    import torch  # the engine has loaded it

    return output.of(PoolingOutput(torch.from_numpy(output.outputs.data)))
