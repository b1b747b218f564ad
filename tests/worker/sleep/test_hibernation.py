"""A hibernation's blocks on a fake accelerator: another engine over another driver goes on with them."""

import pytest
import torch
from kit.engine.parts import worker_of

from lullm import SamplingParams
from lullm.errors import HibernationError
from lullm.types.sleep import UsedBlocks

PARAMS = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


def steps(llm, num):
    found = {}
    for _ in range(num):
        found |= {output.request_id: output.outputs[0].token_ids for output in llm.llm_engine.step()}
    return found


def test_a_device_goes_on(build, fake, tmp_path):
    llm = build()
    expected = [output.outputs[0].token_ids for output in llm.generate(["one", "two and"], PARAMS, use_tqdm=False)]
    for request_id in ("one", "two and"):
        llm.llm_engine.add_request(request_id, request_id, PARAMS)
    steps(llm, 7)
    assert llm.hibernate(tmp_path / "h").num_blocks >= 2
    other = build(fake.build("cuda"))
    assert other.resume(tmp_path / "h").num_recomputed == 0
    assert list(steps(other, 20).values()) == expected


def test_blocks_without_a_place_are_left_out(build, tmp_path):
    """In a file of another process, in another order, some of them."""
    first, second = worker_of(build()), worker_of(build())
    for number, side in enumerate(side for cache in first.pools.device for side in cache.tensors):
        side.copy_(torch.randn(side.shape, generator=torch.Generator().manual_seed(number)))
    for cache in second.pools.device:
        for side in cache.tensors:
            side.zero_()  # the start has measured with some blocks
    file = first.write_blocks(tmp_path, UsedBlocks([3, 8, 5], [0]))
    assert file.num_bytes == 4 * first.pools.block_bytes
    assert second.read_blocks(tmp_path, UsedBlocks([9, -1, 2], [-1]), [file]) == file.num_bytes
    for own, others in zip(first.pools.device, second.pools.device, strict=True):
        for mine, theirs in zip(own.tensors, others.tensors, strict=True):
            assert torch.equal(mine[[3, 5]], theirs[[9, 2]])
            assert not theirs[[0, 1, 3, 4, 5, 6, 7, 8]].any()
    for words, used in (("less than", UsedBlocks([1] * 4, [1])), ("more than", UsedBlocks([1], []))):
        with pytest.raises(
            HibernationError, match=f"kv-0.bin is damaged or cannot be read: .* holds {words} is wanted"
        ):
            second.read_blocks(tmp_path, used, [file])
    with pytest.raises(FileExistsError):
        first.write_blocks(tmp_path, UsedBlocks([1], []))
