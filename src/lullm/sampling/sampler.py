"""The sampler: from logits to tokens, by the sampling parameters of each draw.

The stages, each one skipped when no draw of the batch needs it:

    rules of timestamps -> penalties -> bias -> allowed tokens, grammars, forbidden tokens -> greedy choice (argmax)
              -> temperature -> top_k -> top_p -> min_p -> random choice (the race of `race`)

The token of a draw depends on its own row and parameters only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lullm.errors import ConfigError
from lullm.ops import in_place
from lullm.ops.draw_table import DrawTable
from lullm.sampling.logprobs import pack_ranked_logprobs, unpack_ranked_logprobs
from lullm.sampling.masks import NO_GUIDES, Masks, StepGuides
from lullm.sampling.penalties import apply_penalties_
from lullm.sampling.race import choose_tokens, keys_of
from lullm.sampling.restrictions import Forbid, apply_restrictions_
from lullm.sampling.timestamps import apply_timestamps_
from lullm.sampling.token_counts import TokenCounts
from lullm.sampling.truncation import scale_by_temperature_, truncate_
from lullm.types.draw import Draw, has_guide_alone
from lullm.types.step import NO_TOKEN, DrawnToken, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Sampled:
    """The result of draws, on the device until `to_host`.

    `tokens` [N] int64, in the order of `draws`. `table` [N, 1 + columns] float64: the tokens again, then the columns of
    `pack_ranked_logprobs` for the rows of `num_best_of_row` (row -> number of best tokens); None: no row wants any.
    """

    draws: Sequence[Draw]
    tokens: Tensor
    table: Tensor | None
    num_best_of_row: dict[int, int]

    def on_host(self, to_host: Callable[[Tensor], Tensor]) -> "Sampled":
        """The same, with the data of `drawn` in host memory, by one transfer."""
        if self.table is None:
            return replace(self, tokens=to_host(self.tokens))
        return replace(self, table=to_host(self.table))

    def drawn(self) -> list[DrawnToken]:
        """The drawn tokens in the order of the draws. Blocks until they are on the host."""
        if self.table is None:
            token_ids = self.tokens.tolist()
            return [DrawnToken(draw.seq_id, token_id) for draw, token_id in zip(self.draws, token_ids, strict=True)]
        drawn = []
        for row, (draw, numbers) in enumerate(zip(self.draws, self.table.tolist(), strict=True)):
            token_id = int(numbers[0])
            ranked: TokenLogprobs = ()
            if row in self.num_best_of_row and token_id != NO_TOKEN:
                ranked = unpack_ranked_logprobs(numbers[1:], token_id, self.num_best_of_row[row])
            drawn.append(DrawnToken(draw.seq_id, token_id, ranked))
        return drawn


class Sampler:
    """Draws tokens and ranks log-probabilities.

    The results of a call depend on its arguments alone. With `choose` it keeps token counts between calls
    (`TokenCounts`), to save work.

    Args:
        vocab_size: V, the width of the logits.
        logprobs_mode: 'raw_logprobs': of the model's own logits (behind the rules of timestamps, for draws that have
            some, as Whisper ranks its outputs); 'processed_logprobs': after penalties, bias,
            restrictions and (for draws that are not greedy) temperature and truncation.
        choose: `Ops.draw_tokens`, where a device has it: all stages from the greedy choice on.
        forbid: `Ops.forbid_`.
        choose_allowed: `Ops.draw_allowed`, where a device has it. Then only refused tokens need masks, and draws that
            only a guide restricts do not change their logits.

    Raises:
        ConfigError: unknown mode.
    """

    def __init__(
        self,
        vocab_size: int,
        logprobs_mode: str = "raw_logprobs",
        choose: Callable[[Tensor, DrawTable, bool], Tensor] | None = None,
        forbid: Forbid = in_place.forbid_,
        choose_allowed: Callable[[Tensor, Tensor, Tensor, DrawTable], Tensor] | None = None,
    ):
        if logprobs_mode not in ("raw_logprobs", "processed_logprobs"):
            raise ConfigError(f"logprobs_mode must be raw_logprobs or processed_logprobs, not {logprobs_mode!r}")
        self._vocab_size = vocab_size
        self._choose = choose
        self._forbid = forbid
        self._choose_allowed = choose_allowed
        self._penalize_ = apply_penalties_ if choose is None else TokenCounts(vocab_size).apply_
        self._wants_raw_logprobs = logprobs_mode == "raw_logprobs"

    @torch.inference_mode()
    def draw(
        self,
        logits: Tensor,
        draws: Sequence[Draw],
        table: DrawTable | None = None,
        guides: StepGuides = NO_GUIDES,
        chosen: Tensor | None = None,
        num_best: int | None = None,
    ) -> Sampled:
        """One token per draw, on the logits' device. Does not synchronise, except for random draws without `choose`.

        Args:
            logits: [N, V] float32, row i for draws[i]; may be changed in place.
            table: of these draws, on the logits' device; None: made here.
            guides: of these draws, with `is_late` of this sampler.
            chosen: [N] int64, the result of `choose` for these logits; None: `choose` was not called.
            num_best: the most tokens that any draw of the whole batch ranks, so that the tables of all its parts have
                equally many columns; None: the most of these draws.

        Raises:
            ValueError: the shape of the logits does not fit.
        """
        if logits.shape != (len(draws), self._vocab_size):
            raise ValueError(
                f"logits of shape {tuple(logits.shape)} for {len(draws)} draws from {self._vocab_size} ids"
            )
        apply_timestamps_(logits, draws)
        best_of_row = num_best_of_rows(draws)
        ranked_rows = list(best_of_row)
        logprobs = _log_softmax(logits, ranked_rows) if ranked_rows and self._wants_raw_logprobs else None
        if self._choose is not None and draws:
            table = self._table(draws).to(logits.device) if table is None else table
            writes_logits = bool(ranked_rows) and not self._wants_raw_logprobs
            tokens = self._choose_tokens(logits, draws, table, guides, None if writes_logits else chosen, writes_logits)
        else:
            keys = None if table is None else table.keys
            tokens = draw_tokens_(logits, draws, keys, guides.early()) if draws else torch.zeros(0, dtype=torch.int64)
        if num_best is None:
            if not best_of_row:
                return Sampled(draws, tokens, None, {})
            num_best = max(best_of_row.values())
        if logprobs is None:
            logprobs = _log_softmax(logits, ranked_rows)
        return Sampled(draws, tokens, _table_of(tokens, ranked_rows, logprobs, num_best), best_of_row)

    def is_late(self, draw: Draw) -> bool:
        """See `Late`. A mask removes tokens. It changes neither the best token nor, without top_k, top_p and min_p, the
        winner of a race, if that token is allowed.
        """
        params = draw.params
        is_whole = params.top_k == 0 and params.top_p == 1.0 and params.min_p == 0.0
        return self._is_apart(draw) and (params.is_greedy or is_whole)

    def _is_apart(self, draw: Draw) -> bool:
        """Whether the draw's mask can stay out of the logits."""
        params = draw.params
        keeps_logits = params.num_logprobs is None or self._wants_raw_logprobs
        return self._choose_allowed is not None and keeps_logits and has_guide_alone(params.edits)

    def _choose_tokens(
        self,
        logits: Tensor,
        draws: Sequence[Draw],
        table: DrawTable,
        guides: StepGuides,
        chosen: Tensor | None,
        writes_logits: bool,
    ) -> Tensor:
        """[N] int64. Draws that only a guide restricts choose again where their grammar refuses a token."""
        assert self._choose is not None
        masks = guides.early()
        apart = set(guides.late)
        others = [row for row, draw in enumerate(draws) if draw.params.edits is not None and row not in apart]
        apart.update(row for row in others if self._is_apart(draws[row]))
        if chosen is None or any(row not in apart for row in others):
            self._penalize_(logits, draws)
            inside = None if masks is None else masks.part(set(masks.rows) - apart)
            apply_restrictions_(logits, draws, inside, self._forbid)
            chosen = self._choose(logits, table, writes_logits)
        again = [None if masks is None else masks.part(apart)]
        if guides.late:
            token_ids = chosen.tolist()
            again.append(guides.settle(token_ids))
            chosen = torch.tensor(token_ids)
        for masks in again:
            if masks is not None:
                assert self._choose_allowed is not None
                rows = torch.tensor(masks.rows)
                allowed = torch.from_numpy(masks.allowed)
                chosen = chosen.index_copy(0, rows, self._choose_allowed(logits, rows, allowed, table.take(rows)))
        return chosen

    def _table(self, draws: Sequence[Draw]) -> DrawTable:
        is_random = any(not draw.params.is_greedy for draw in draws)
        return DrawTable.of(draws, keys_of(draws) if is_random else None, self._vocab_size)

    @torch.inference_mode()
    def prompt_logprobs(self, logits: Tensor, targets: Sequence[int], num_logprobs: int) -> list[TokenLogprobs]:
        """For each row the target, then the `num_logprobs` best tokens in order without the target. Blocks.

        Uses the model's own logits, because sampling parameters do not apply to a prompt.

        Args:
            logits: [R, V] float32; not changed, but copied once.
            targets: R token ids, the next tokens of the prompt.
        """
        if logits.shape != (len(targets), self._vocab_size):
            raise ValueError(f"logits of shape {tuple(logits.shape)} for {len(targets)} targets")
        if not targets:
            return []
        chosen = torch.tensor(targets).to(logits.device, non_blocking=True)
        packed = pack_ranked_logprobs(logits.log_softmax(-1), chosen, num_logprobs).tolist()
        return [unpack_ranked_logprobs(row, target, num_logprobs) for row, target in zip(packed, targets, strict=True)]


def num_best_of_rows(draws: Sequence[Draw]) -> dict[int, int]:
    """Row -> number of best tokens, for the rows whose draws want log-probabilities."""
    wanted = enumerate(draw.params.num_logprobs for draw in draws)
    return {row: num_best for row, num_best in wanted if num_best is not None}


def is_plain(draws: Sequence[Draw], only_greedy: bool) -> bool:
    """Whether all draws use the model's logits unchanged and want only the token. Host only.

    Args:
        only_greedy: also require that every draw is greedy.
    """
    for draw in draws:
        params = draw.params
        if params.edits is not None or params.num_logprobs is not None or (only_greedy and params.temperature):
            return False
    return True


def greedy_tokens(logits: Tensor) -> Tensor:
    """[N] int64: the first of the largest logits of each row of [N, V], or NO_TOKEN. Does not synchronise."""
    best = logits.max(dim=-1)
    return best.indices.where(best.values.isfinite(), NO_TOKEN)


def draw_tokens_(
    logits: Tensor, draws: Sequence[Draw], keys: Tensor | None = None, masks: Masks | None = None
) -> Tensor:
    """Token ids [N] int64 on the logits' device, NO_TOKEN where none can be drawn. Changes logits [N, V] in place.

    Afterwards the logits are those of the draw, up to a constant per row. Synchronises unless all draws are greedy.
    """
    apply_penalties_(logits, draws)
    apply_restrictions_(logits, draws, masks)
    best = logits.max(dim=-1)  # the first of equal ones
    tokens = best.indices
    random_rows = [row for row, draw in enumerate(draws) if not draw.params.is_greedy]
    if len(random_rows) == len(draws):
        tokens = _draw_at_random_(logits, best.values, draws, keys)
    elif random_rows:
        index = torch.tensor(random_rows).to(logits.device, non_blocking=True)
        part, part_draws = logits[index], [draws[row] for row in random_rows]
        part_keys = None if keys is None else keys[index]
        tokens[index] = _draw_at_random_(part, best.values[index], part_draws, part_keys)
        logits[index] = part
    # A maximum propagates NaN, so it shows every broken logit of the row that could have been drawn.
    return tokens.where(best.values.isfinite(), NO_TOKEN)


def _draw_at_random_(logits: Tensor, best: Tensor, draws: Sequence[Draw], keys: Tensor | None) -> Tensor:
    """Token ids [N] of draws that are not greedy. Changes logits [N, V], whose row maxima are `best`, in place."""
    params = [draw.params for draw in draws]
    scale_by_temperature_(logits, best, params)
    truncate_(logits, params)
    if keys is None:
        keys = torch.from_numpy(keys_of(draws)).to(logits.device, non_blocking=True)
    return choose_tokens(logits, keys)


def _log_softmax(logits: Tensor, rows: list[int]) -> Tensor:
    """Log-probabilities [len(rows), V] in new memory. Does not synchronise."""
    if len(rows) < len(logits):
        logits = logits[torch.tensor(rows, dtype=torch.int64).to(logits.device, non_blocking=True)]
    return logits.log_softmax(-1)


def _table_of(tokens: Tensor, ranked_rows: list[int], logprobs: Tensor, num_best: int) -> Tensor:
    """Tokens [N] and the wanted figures of logprobs [len(ranked_rows), V] in one table. Does not synchronise."""
    index = torch.tensor(ranked_rows, dtype=torch.int64).to(tokens.device, non_blocking=True)
    packed = pack_ranked_logprobs(logprobs, tokens[index].clamp(min=0), num_best)
    table = torch.zeros(len(tokens), 1 + packed.shape[1], dtype=packed.dtype, device=packed.device)
    table[:, 0] = tokens
    table[index, 1:] = packed
    return table
