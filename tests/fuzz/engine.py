"""A whole engine over a tiny model: requests, aborts, sleeps, weight updates and hibernations, in pools too small.

Every accepted request ends once; greedy tokens are those of the request alone; blocks, sequences and memory come back.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.engine.parts import block_space_of, open_requests_of, scheduler_of
from kit.folder.checkpoint import write_checkpoint
from safetensors.torch import load_file

from lullm import LLM, SamplingParams
from lullm.errors import EngineAsleepError, InvalidRequestError
from lullm.types.outputs import KV_CACHE_FULL, RequestOutput

from .request import random_params, random_prompt
from .target import Target

MAX_MODEL_LEN = 128
MARGIN = 1e-4
"""Where the two best log-probabilities are closer, the batch may decide which is the greedy token."""


class EngineTarget(Target):
    """A round is an engine of its own, with random options, and `num_actions` actions."""

    num_actions = 150
    longest_prompt = 80
    shape: dict[str, int] = {"num_hidden_layers": 2}
    """Of the model, beside that of its family."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._model = str(write_checkpoint(folder / "model", "qwen3", **self.shape))
        self._weights = load_file(f"{self._model}/model.safetensors")
        self._alone = self._new_alone()

    def close(self) -> None:
        self._alone.shutdown()

    def round(self, rng: random.Random) -> None:
        options = self._options(rng)
        one = _Round(self, LLM(self._model, **options), rng, options)
        try:
            one.run()
        finally:
            one.llm.shutdown()

    def opened_again(self, options: dict[str, Any], rng: random.Random) -> LLM:
        """An engine for what one with these options has written, maybe of another size."""
        others = {
            "num_gpu_blocks_override": options["num_gpu_blocks_override"] + rng.choice([0, 0, 7]),
            "swap_space": options["swap_space"] if options["preemption_mode"] == "swap" else rng.choice([0, 0.001]),
            "enforce_eager": rng.random() < 0.3,
        }
        return LLM(self._model, **options | others)

    def alone(self, prompt: list[int], params: SamplingParams) -> RequestOutput:
        """The request's output when nothing else runs."""
        [output] = self._alone.generate([prompt], params.replace(logprobs=max(params.logprobs or 0, 2)), use_tqdm=False)
        return output

    def _new_alone(self, **options: Any) -> LLM:
        return LLM(self._model, dtype="float32", max_model_len=MAX_MODEL_LEN, num_gpu_blocks_override=64, **options)

    def weights(self, rng: random.Random) -> list[tuple[str, torch.Tensor]]:
        """Some of the weights as they are: an update that must change no token."""
        return rng.sample(list(self._weights.items()), rng.randrange(1, 5))

    def _options(self, rng: random.Random) -> dict[str, Any]:
        chunked, block_size = rng.random() < 0.7, rng.choice([4, 8, 16])
        return {
            "dtype": "float32",
            "max_model_len": MAX_MODEL_LEN,
            "enable_sleep_mode": True,
            "sleep_dir": str(self.folder),
            "threads": 1,
            "block_size": block_size,
            "num_gpu_blocks_override": MAX_MODEL_LEN // block_size + rng.choice([0, 2, 10, 40]),
            "swap_space": rng.choice([0, 0.0001, 1]),
            "enable_prefix_caching": rng.random() < 0.7,
            "enable_chunked_prefill": chunked,
            "max_num_batched_tokens": rng.choice([16, 40, 256]) if chunked else 256,
            "max_num_seqs": rng.choice([4, 8, 16]),
            "scheduling_policy": rng.choice(["fcfs", "priority"]),
            "preemption_mode": rng.choice(["auto", "recompute"]),
            "enforce_eager": rng.random() < 0.3,
            "async_scheduling": rng.random() < 0.3,
            "attention_backend": rng.choice(["auto", "auto", "torch"]),
        }


class _Round:
    """One engine's life."""

    def __init__(self, target: EngineTarget, llm: LLM, rng: random.Random, options: dict[str, Any]):
        self.target = target
        self.options = options
        self.llm = llm
        self.rng = rng
        self.asked: dict[str, tuple[list[int], SamplingParams]] = {}
        self.aborted: set[str] = set()
        self.ended: dict[str, RequestOutput] = {}
        self.counts: Counter[str] = target.counts

    def run(self) -> None:
        actions = {
            self._step: 60, self._add: 30, self._abort: 2, self._sleep: 3, self._wake_up: 4, self._forget: 1,
            self._update: 1, self._hibernate: 1,
        }  # fmt: skip
        for action in self.rng.choices(list(actions), list(actions.values()), k=self.target.num_actions):
            action()
        self.llm.wake_up()
        for _ in range(5000):
            if not self.llm.llm_engine.has_unfinished_requests():
                break
            self._step()
        self._check_end()

    def _step(self) -> None:
        engine = self.llm.llm_engine
        try:
            outputs = engine.step()
        except EngineAsleepError:
            assert self.llm.is_sleeping()
            return
        self.counts["steps"] += 1
        for output in outputs:
            if output.finished:
                assert output.request_id not in self.ended, "a request ends once"
                self.ended[output.request_id] = output
        block_space_of(engine).check_conservation()

    def _add(self) -> None:
        prompt, params = random_prompt(self.rng, self.target.longest_prompt), random_params(self.rng)
        request_id = str(len(self.asked))
        try:
            self.llm.llm_engine.add_request(request_id, prompt, params, priority=self.rng.randrange(3))
        except (InvalidRequestError, EngineAsleepError) as error:
            self.counts["refused"] += 1
            assert isinstance(error, InvalidRequestError) or self.llm.is_sleeping()
            return
        self.asked[request_id] = prompt, params

    def _abort(self) -> None:
        live = [request_id for request_id in self.asked if request_id not in self.ended]
        if live:
            request_id = self.rng.choice(live)
            self.aborted.add(request_id)
            self.llm.llm_engine.abort_request(request_id)

    def _sleep(self) -> None:
        level = self.rng.choice([0, 1, 1, 2])
        options: dict[str, Any] = {"mode": self.rng.choice(["keep", "keep", "keep", "abort"])}
        if level == 1:
            options["backup"] = self.rng.choice(["auto", "ram", "disk"])
            options["keep_prefix_cache"] = self.rng.random() < 0.3
        if level:
            options["tags"] = self.rng.choice([None, None, ["weights"], ["kv_cache"]])
        try:
            self.llm.explain_sleep(level, **{name: value for name, value in options.items() if name != "mode"})
        except InvalidRequestError:
            with pytest.raises(InvalidRequestError):
                self.llm.sleep(level, **options)
            return
        if options["mode"] == "abort":
            self.aborted |= {request_id for request_id in self.asked if request_id not in self.ended}
        self.llm.sleep(level, **options)
        self.counts["sleeps"] += 1

    def _wake_up(self) -> None:
        self.llm.wake_up(self.rng.choice([None, None, ["weights"], ["kv_cache"]]))

    def _forget(self) -> None:
        self.llm.reset_prefix_cache()

    def _update(self) -> None:
        try:
            if self.rng.random() < 0.5:
                self.llm.update_weights(self.target.weights(self.rng))
            else:
                self.llm.collective_rpc("reload_weights")
        except EngineAsleepError:
            assert self.llm.is_sleeping()
        else:
            self.counts["updates"] += 1

    def _hibernate(self) -> None:
        """Go on in another engine."""
        place = self.target.folder / "hibernation"
        try:
            forecast = self.llm.explain_hibernate()
            report = self.llm.hibernate(place)
        except EngineAsleepError:
            assert self.llm.sleeping_tags
            return
        assert (forecast.num_requests, forecast.kv_bytes) == (report.num_requests, report.kv_bytes)
        self.counts["preempted"] += sum(self.llm.llm_engine.stats().preemptions_total.values())
        self.llm = self.target.opened_again(self.options, self.rng)
        assert len(self.llm.resume(place).request_ids) == report.num_requests
        block_space_of(self.llm).check_conservation()
        self.counts["hibernations"] += 1

    def _check_end(self) -> None:
        engine = self.llm.llm_engine
        self.llm.llm_engine.step()  # what an abort has left pending
        space, scheduler = block_space_of(engine), scheduler_of(engine)
        space.check_conservation()
        assert space.num_used_blocks == 0 and space.num_used_host_blocks == 0 and space._tables == {}
        assert open_requests_of(engine) == {} and scheduler.roster._members == {}
        lost = self.asked.keys() - self.ended.keys() - self.aborted
        assert not lost, f"lost requests: {sorted(lost)}"
        self.counts["requests"] += len(self.asked)
        self.counts["preempted"] += sum(engine.stats().preemptions_total.values())
        whole = [request_id for request_id in self.ended if request_id not in self.aborted]
        for request_id in whole:
            _check_form(self.ended[request_id], self.asked[request_id][1])
        greedy = [request_id for request_id in whole if _is_comparable(self.asked[request_id][1])]
        for request_id in self.rng.sample(greedy, min(len(greedy), 12)):
            self._check_greedy(self.ended[request_id], *self.asked[request_id])

    def _check_greedy(self, output: RequestOutput, prompt: list[int], params: SamplingParams) -> None:
        self.counts["compared"] += 1
        expected = self.target.alone(prompt, params)
        for found, gold in zip(output.outputs, expected.outputs, strict=True):
            if found.stop_reason == KV_CACHE_FULL:
                assert found.token_ids == gold.token_ids[: len(found.token_ids)]
            elif found.token_ids != gold.token_ids:
                pairs = enumerate(zip(found.token_ids, gold.token_ids, strict=False))
                place = next((i for i, (mine, right) in pairs if mine != right), None)
                assert place is not None and gold.logprobs is not None, (found.token_ids, gold.token_ids)
                best = sorted((entry.logprob for entry in gold.logprobs[place].values()), reverse=True)
                assert best[0] - best[1] < MARGIN, f"token {place}: {found.token_ids} is not {gold.token_ids}"
                self.counts["ties"] += 1
            else:
                assert (found.text, found.finish_reason) == (gold.text, gold.finish_reason)


def _is_comparable(params: SamplingParams) -> bool:
    """Whether the answer is a greedy one, where a margin says how sure it is of the model's logits alone."""
    has_penalties = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0
    return params.is_greedy and not (has_penalties or params.logit_bias or params.beam_width)


def _check_form(output: RequestOutput, params: SamplingParams) -> None:
    """What holds for the output of any request that was not aborted."""
    assert len(output.outputs) == params.n and [c.index for c in output.outputs] == list(range(params.n))
    for completion in output.outputs:
        assert completion.finish_reason in ("stop", "length"), completion
        assert 1 <= len(completion.token_ids) <= (params.max_tokens or MAX_MODEL_LEN)
        if params.logprobs is not None:
            assert completion.logprobs is not None and len(completion.logprobs) == len(completion.token_ids)
            for token_id, position in zip(completion.token_ids, completion.logprobs, strict=True):
                assert next(iter(position)) == token_id and len(position) >= params.logprobs
        for stop in params.stop or ():
            if not params.include_stop_str_in_output and not params.min_tokens:
                assert stop not in completion.text
        if params.allowed_token_ids:
            assert set(completion.token_ids) <= set(params.allowed_token_ids) | {0, 2}
    if params.prompt_logprobs is not None:
        assert output.prompt_logprobs is not None and len(output.prompt_logprobs) == len(output.prompt_token_ids)
