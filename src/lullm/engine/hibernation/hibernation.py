"""Hibernation: writes an engine's conversations to a folder, and brings them back in another engine.

Between two steps, none of which is in flight. Writing changes nothing in the engine. Reading builds and checks
everything before it changes anything; only the contents of blocks are checked while they are read, into free blocks.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.engine.hibernation.folder import (
    FORMAT,
    QUEUE_FILE,
    Manifest,
    checksum_of,
    new_folder,
    read_folder,
    write_file,
    write_manifest,
)
from lullm.engine.hibernation.identity import difference, identity_of
from lullm.engine.hibernation.queue import (
    QueueImage,
    UnfinishedImage,
    build_output,
    build_request,
    decode_queue,
    encode_queue,
    layout,
    take_output,
    take_request,
)
from lullm.engine.hibernation.text_image import RequestTextImage
from lullm.engine.input.processor import InputProcessor
from lullm.engine.lora.adapters import Adapters
from lullm.engine.output import RequestText
from lullm.engine.pooling.output import RequestVector
from lullm.engine.step_loop import StepLoop
from lullm.errors import EngineDeadError, HibernationError, InvalidRequestError
from lullm.executor.executor import Executor
from lullm.kv.image.image import BlockSpaceImage
from lullm.log import get_logger
from lullm.sched.image.group import build_group, new_group_image
from lullm.sched.image.groups import FoundRoom, Returning, bring_back, find_room, take_groups
from lullm.sched.scheduler import Scheduler
from lullm.text.tokenizer import Tokenizer
from lullm.types.hibernation.report import HibernationForecast, HibernationReport, ResumeReport
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.request import GenerateRequest
from lullm.types.sequence import SequenceGroup
from lullm.types.sleep import UsedBlocks
from lullm.units import format_bytes
from lullm.version import VERSION

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Hibernation:
    """One engine's parts. `block_bytes`: of one KV block on all workers."""

    config: ResolvedConfig
    model: ModelConfig
    executor: Executor
    scheduler: Scheduler
    loop: StepLoop
    inputs: InputProcessor
    adapters: Adapters
    tokenizer: Tokenizer
    block_bytes: int

    def forecast(
        self, queued: Sequence[GenerateRequest] = (), outputs: Sequence[EngineOutput] = ()
    ) -> HibernationForecast:
        """What `write` would write. Raises HibernationError."""
        return self._forecast(queue := self._take(queued, outputs), encode_queue(queue))

    def write(
        self, path: str, queued: Sequence[GenerateRequest] = (), outputs: Sequence[EngineOutput] = ()
    ) -> HibernationReport:
        """Write everything to the folder `path`. The engine is not changed.

        Args:
            queued: requests that no scheduler has seen yet. outputs: that nobody has fetched, beside the loop's.

        Raises HibernationError: something cannot be written.
        """
        return self._write(path, self._take(queued, outputs))

    def write_prefixes(self, path: str) -> HibernationReport:
        """Write the blocks that later requests can find to the folder `path`, and no requests. Raises as `write`."""
        blocks = self.scheduler.block_space.images.take_findable()
        return self._write(path, QueueImage([], [], blocks, self.inputs.seeds.state, time.monotonic()))

    def read(self, path: str) -> ResumeReport:
        """Bring back what the folder `path` holds. The engine has no unfinished request.

        Raises HibernationError: the folder is damaged, or of another engine; this engine has lost at most the prefixes
        that it had cached.
        """
        started = time.perf_counter()
        folder, manifest, queue = self._open(path)
        shift_s = time.monotonic() - queue.saved_s
        returning, texts = self._build(queue, shift_s)
        outputs = [build_output(each, shift_s, self.tokenizer.decode_token) for each in queue.outputs]
        room = find_room(self.scheduler, returning, queue.blocks)
        seeds = self.inputs.seeds.state
        self._restore_seeds(queue)
        try:
            num_bytes = self._read_blocks(folder, manifest, queue.blocks, room)
        except BaseException:
            self.inputs.seeds.restore(*seeds)
            raise
        bring_back(self.scheduler, returning, room.kept, queue.blocks)
        for each, text in zip(returning, texts, strict=True):
            self.loop.output_processor.adopt(each.group, text)
        self.loop.keep(outputs)
        arrivals = [(each.group.metrics.arrival_time, each.group.request_id) for each in returning]
        arrivals += [(each.metrics.arrival_time if each.metrics else 0.0, each.request_id) for each in outputs]
        num_lost = sum(each.image.place != "waiting" for each in returning) - len(room.kept)
        request_ids = dict.fromkeys(request_id for _, request_id in sorted(arrivals, key=lambda item: item[0]))
        return _resumed(path, ResumeReport(tuple(request_ids), num_lost, room.num_blocks, num_bytes, _since(started)))

    def read_prefixes(self, path: str) -> ResumeReport:
        """Bring back the blocks in the folder `path` that requests can find, and no requests. Raises as `read`."""
        started = time.perf_counter()
        folder, manifest, queue = self._open(path)
        room = find_room(self.scheduler, (), queue.blocks)
        num_bytes = self._read_blocks(folder, manifest, queue.blocks, room)
        bring_back(self.scheduler, (), (), queue.blocks)
        return _resumed(path, ResumeReport((), 0, room.num_blocks, num_bytes, _since(started)))

    def _write(self, path: str, queue: QueueImage) -> HibernationReport:
        started = time.perf_counter()
        data = encode_queue(queue)
        forecast = self._forecast(queue, data)
        blocks = queue.blocks
        with new_folder(path, forecast.written_bytes) as folder:
            checksums = self.executor.weight_checksums()
            used = UsedBlocks(blocks.device.block_ids, blocks.host.block_ids)
            files = self.executor.write_blocks(folder, used)
            write_file(folder / QUEUE_FILE, data)
            manifest = Manifest(
                format=FORMAT,
                version=VERSION,
                layout=layout(),
                identity=identity_of(self.config, self.model, checksums),
                model=self.config.model,
                revision=self.config.revision,
                is_modified=self.executor.has_pushed_weights(),
                num_requests=forecast.num_requests,
                num_blocks=forecast.num_blocks,
                queue_bytes=len(data),
                queue_checksum=checksum_of(data),
                files=files,
            )
            write_manifest(folder, manifest)
        report = HibernationReport(
            path=path,
            num_requests=forecast.num_requests,
            num_blocks=forecast.num_blocks,
            kv_bytes=forecast.kv_bytes,
            written_bytes=forecast.written_bytes,
            seconds=_since(started),
        )
        logger.info(
            "written to %s: %d requests, %d KV blocks, %s, %.2f s",
            path, report.num_requests, report.num_blocks, format_bytes(report.written_bytes), report.seconds,
        )  # fmt: skip
        return report

    def _open(self, path: str) -> tuple[Path, Manifest, QueueImage]:
        folder, manifest, data = read_folder(path, VERSION, layout())
        self._check_identity(folder, manifest)
        return folder, manifest, decode_queue(data)

    def _read_blocks(self, folder: Path, manifest: Manifest, blocks: BlockSpaceImage, room: FoundRoom) -> int:
        """The contents of the blocks that come back, into their new places. Returns their bytes."""
        images = self.scheduler.block_space.images
        used = images.begin(blocks, room.device, room.host)
        try:
            return self.executor.read_blocks(folder, used, manifest.files)
        except BaseException:
            images.cancel()
            with contextlib.suppress(EngineDeadError):  # it must not hide the first error
                self.executor.reset_kv_scales()
            raise

    def _take(self, queued: Sequence[GenerateRequest], outputs: Sequence[EngineOutput]) -> QueueImage:
        processor = self.loop.output_processor
        unfinished = [
            UnfinishedImage(take_request(group.request), image, processor.image(group))
            for group, image in take_groups(self.scheduler)
        ]
        unfinished += [
            UnfinishedImage(take_request(each), new_group_image(each), RequestTextImage([], False)) for each in queued
        ]
        return QueueImage(
            unfinished,
            [take_output(each) for each in (*outputs, *self.loop.pending)],
            self.scheduler.block_space.images.take(),
            self.inputs.seeds.state,
            time.monotonic(),
        )

    def _forecast(self, queue: QueueImage, data: bytes) -> HibernationForecast:
        num_blocks = len(queue.blocks.device.block_ids) + len(queue.blocks.host.block_ids)
        kv_bytes = num_blocks * self.block_bytes
        ids = {each.request.request.request_id for each in queue.unfinished}
        ids |= {each.request_id for each in queue.outputs}
        return HibernationForecast(len(ids), num_blocks, kv_bytes, kv_bytes + len(data))

    def _check_identity(self, folder: Path, manifest: Manifest) -> None:
        found = difference(manifest.identity, identity_of(self.config, self.model, self.executor.weight_checksums()))
        if found is None and len(manifest.files) == self.executor.num_workers:
            return
        hint = ""
        if found and "weights" in found:
            hint = f" than those of {manifest.model} there"
            hint += ", which had been updated: push the same weights first" if manifest.is_modified else ""
        raise HibernationError(
            f"{folder} was written by another engine: {found}{hint}; build the engine as it was there"
        )

    def _build(self, queue: QueueImage, shift_s: float) -> tuple[list[Returning], list[RequestText | RequestVector]]:
        """The groups, and the makers of their outputs."""
        returning, texts = [], []
        for each in queue.unfinished:
            request = self._with_adapter(build_request(each.request, shift_s))
            sizes = self.config.max_model_len, self.model.vocab_size, self.config.block_size
            group, search = build_group(request, each.group, shift_s, *sizes)
            returning.append(Returning(group, search, each.group))
            texts.append(self._restored_texts(group, each.texts))
        if len({each.group.request_id for each in returning}) < len(returning):
            raise HibernationError("two requests of the hibernation have the same id")
        return returning, texts

    def _with_adapter(self, request: GenerateRequest) -> GenerateRequest:
        """The request with its adapter, which must be the one that it had; it stays added."""
        try:
            return self.adapters.admit(request)
        except InvalidRequestError as error:
            raise HibernationError(f"request {request.request_id!r} needs its adapter: {error}") from None

    def _restored_texts(self, group: SequenceGroup, image: RequestTextImage) -> RequestText | RequestVector:
        is_known = all(0 <= each < self.model.vocab_size for text in image.texts for each in text.token_ids)
        try:
            if is_known:
                return self.loop.output_processor.restored(group, image)
        except ValueError as error:  # arrays that are cut
            raise HibernationError(f"the texts of {group.request_id!r} cannot be read: {error}") from None
        raise HibernationError(f"the texts of {group.request_id!r} have tokens that the model does not know")

    def _restore_seeds(self, queue: QueueImage) -> None:
        try:
            self.inputs.seeds.restore(*queue.seeds)
        except (ValueError, TypeError, OverflowError) as error:
            raise HibernationError(f"the state of the generator of seeds cannot be read: {error}") from None


def _since(started: float) -> float:
    return time.perf_counter() - started


def _resumed(path: str, report: ResumeReport) -> ResumeReport:
    logger.info(
        "read from %s: %d requests (%d to be computed again), %d KV blocks, %s, %.2f s",
        path, len(report.request_ids), report.num_recomputed, report.num_blocks, format_bytes(report.restored_bytes),
        report.seconds,
    )  # fmt: skip
    return report
