"""Every torch function that meets a tensor of the device, or is asked for one."""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from fake_cuda.tensors import DeviceTensor, PinnedTensor, Present, address_of, all_plain, plain, storage_of

WAITING = {"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero", "masked_select", "unique",
           "equal", "allclose", "is_nonzero", "numpy", "__array__", "__repr__", "__format__", "__contains__",
           "__torch_testing_to_host__"}  # fmt: skip
STAYING = {"nonzero", "masked_select", "unique"}  # of those: the host waits for a size, the result stays on the device
MIXING = {"copy_", "to", "__getitem__", "__setitem__", "cpu", "cuda", "set_", "isfinite"}
MOVES = {"to", "cpu", "cuda"}


class Factories(TorchFunctionMode):
    """Sees the functions that take no tensor. Of one thread only."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **kwargs or {}) if Present.gpu is None else Present.gpu.calls.run(func, args, kwargs or {})


class TorchCalls:
    """Runs torch functions over the host's memory, as a GPU would see them."""

    def __init__(self, gpu):
        self._gpu = gpu

    def run(self, func, args, kwargs):
        name = getattr(func, "__name__", "")
        if name == "__get__":
            found = self._attribute(func.__self__.__name__, args[0])
            if found is not None:
                return found
        if name in ("is_pinned", "pin_memory") and args:
            return self._pin(name, args[0])
        leaves = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        on_device = [t for t in leaves if isinstance(t, DeviceTensor)]
        wanted = self._wanted_device(name, args, kwargs)
        is_pinned = bool(kwargs.get("pin_memory"))
        if is_pinned:
            self._check_context("memory is pinned")
        if not (on_device or _is_device(wanted) or is_pinned or any(isinstance(t, PinnedTensor) for t in leaves)):
            return func(*args, **kwargs)
        if on_device:
            self._check(name, args, leaves, on_device)
        if name in MOVES:
            return self._move(name, args, kwargs, wanted)
        if name in ("tensor", "as_tensor") and _is_device(wanted):
            self._gpu.refuse_hidden_wait(name)
            self._copied("to device", 0, False)
        plain_args, plain_kwargs = all_plain((args, kwargs))
        plain_kwargs.pop("pin_memory", False)
        if "device" in plain_kwargs and _is_device(wanted):
            plain_kwargs["device"] = "cpu"
        if name == "copy_":
            self._note_copy(args[1], args[0], bool(kwargs.get("non_blocking")))
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*plain_args, **plain_kwargs)
        if name in WAITING:
            return self._waited(name, out, on_device)
        written = self._written_in_place(name, args, kwargs)
        if written is not None:
            return self._in_place(func, plain_args, plain_kwargs, on_device, written, args, kwargs)
        goes_to_device = _is_device(wanted) if wanted is not None else bool(on_device)
        found = self._wrapped(out, leaves, goes_to_device, is_pinned)
        if goes_to_device:
            self._made(func, plain_args, plain_kwargs, found, leaves, on_device)
        elif on_device:
            self._touch(on_device, ())
        return found

    # -- results ---------------------------------------------------------------------------------------------------

    def _waited(self, name, out, on_device):
        if not on_device:
            return out
        self._touch(on_device, ())
        if name in STAYING:
            return tree_map_only(torch.Tensor, lambda tensor: tensor.as_subclass(DeviceTensor), out)
        return out

    def _written_in_place(self, name, args, kwargs):
        """What a function writes over, or None."""
        if "out" in kwargs:
            return kwargs["out"]
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            return args[0] if args else None
        return None

    def _in_place(self, func, plain_args, plain_kwargs, on_device, target, args, kwargs):
        written = [target] if isinstance(target, DeviceTensor) else []
        self._touch(on_device, written)
        if on_device and func is not torch.Tensor.set_:
            self._record(func, plain_args, plain_kwargs, (), on_device, written)
        if func is torch.Tensor.copy_ and kwargs.get("non_blocking"):
            self._end_late(args[1], target)
        return None if func is torch.Tensor.__setitem__ else target

    def _end_late(self, source, target):
        if isinstance(target, PinnedTensor) and isinstance(source, DeviceTensor):
            self._gpu.late.to_host(self._gpu.stream, target)
        elif isinstance(target, DeviceTensor) and isinstance(source, PinnedTensor):
            self._gpu.late.from_host(self._gpu.stream, source)

    def _wrapped(self, out, leaves, goes_to_device, is_pinned):
        pinned = {address_of(t) for t in leaves if isinstance(t, PinnedTensor)}

        def wrap(tensor):
            if goes_to_device:
                return tensor.as_subclass(DeviceTensor)
            return tensor.as_subclass(PinnedTensor) if is_pinned or address_of(tensor) in pinned else tensor

        return tree_map_only(torch.Tensor, wrap, out)

    def _made(self, func, plain_args, plain_kwargs, found, leaves, on_device):
        """Results on the device; those in new memory are allocated, and recorded."""
        old = {address_of(t) for t in leaves}
        results = [t for t in tree_leaves(found) if isinstance(t, DeviceTensor)]
        new = [t for t in results if address_of(t) not in old]
        for tensor in new:
            self._gpu.allocated(storage_of(tensor))
        if new:  # a view is no work
            self._touch(on_device, new)
            self._record(func, plain_args, plain_kwargs, results, on_device, new)

    # -- what a device refuses -------------------------------------------------------------------------------------

    def _check(self, name, args, leaves, on_device):
        strangers = [t for t in leaves if not isinstance(t, DeviceTensor) and t.dim()]
        if strangers and name not in MIXING:
            raise RuntimeError(f"{name}: expected all tensors to be on the same device, but found cuda:0 and cpu")
        index = args[1] if name in ("__getitem__", "__setitem__") else ()
        parts = [t for t in tree_leaves(index) if isinstance(t, torch.Tensor)]
        if name in WAITING or (name == "__getitem__" and any(t.dtype == torch.bool and t.dim() for t in parts)):
            self._gpu.refuse_hidden_wait(name)
            self._gpu.wait(self._gpu.stream.now())
        if any(not isinstance(t, DeviceTensor) for t in parts) or any(isinstance(i, list) for i in _tuple(index)):
            self._gpu.refuse_hidden_wait("an index of the host")
            self._copied("to device", 0, False)

    def _check_context(self, what):
        if self._gpu.current_device != self._gpu.device.index:
            self._gpu.order.note(f"{what} while device {self._gpu.current_device} is current in this thread")

    # -- exchanges -------------------------------------------------------------------------------------------------

    def _note_copy(self, source, target, non_blocking):
        """A copy; `target` None: to new memory of the device."""
        to_device = target is None or isinstance(target, DeviceTensor)
        if not isinstance(source, torch.Tensor) or to_device == isinstance(source, DeviceTensor):
            return
        pinned = isinstance(source if to_device else target, PinnedTensor)
        if not non_blocking:
            self._gpu.refuse_hidden_wait("a copy that blocks")
        self._copied("to device" if to_device else "to host", source.nbytes, pinned)
        if to_device and pinned:
            self._gpu.late.settle(source)
        if not to_device and not (pinned and non_blocking):
            self._gpu.wait(self._gpu.stream.now())

    def _copied(self, direction, num_bytes, is_pinned):
        self._gpu.copies.append((direction, num_bytes, is_pinned))
        if self._gpu.is_capturing and not is_pinned:
            raise RuntimeError(
                "CUDA error: operation not permitted when stream is capturing (a copy of pageable memory)"
            )

    def _move(self, name, args, kwargs, wanted):
        tensor, *rest = args
        was_on_device = isinstance(tensor, DeviceTensor)
        is_on_device = was_on_device if wanted is None and name == "to" else name == "cuda" or _is_device(wanted)
        rest = [a.dtype if isinstance(a, torch.Tensor) else a for a in rest if not isinstance(a, (str, torch.device))]
        kwargs = {key: value for key, value in kwargs.items() if key != "device"}
        crosses = was_on_device != is_on_device
        non_blocking = bool(kwargs.get("non_blocking"))
        if crosses:
            self._note_copy(tensor, None if is_on_device else torch.empty(0), non_blocking)

        def move(source):
            moved = source.to(*rest, **kwargs) if rest or kwargs else source
            return moved.clone() if crosses and moved.data_ptr() == source.data_ptr() else moved

        with torch._C.DisableTorchFunctionSubclass():
            out = move(plain(tensor))
        if address_of(out) == address_of(tensor):
            return tensor
        read = [tensor] if was_on_device else []
        if not is_on_device:
            self._touch(read, ())
            return out
        out = out.as_subclass(DeviceTensor)
        self._gpu.allocated(storage_of(out))
        self._touch(read, [out])
        self._record(move, (plain(tensor),), {}, [out], read, [out])
        if crosses and non_blocking:
            self._end_late(tensor, out)
        return out

    def _touch(self, read, written):
        self._gpu.touch([address_of(t) for t in read], [address_of(t) for t in written])

    def _record(self, func, args, kwargs, results, read, written):
        if self._gpu.is_capturing:
            self._gpu.recording.add(func, args, kwargs, [plain(t) for t in results], read, written)

    # -- facts -----------------------------------------------------------------------------------------------------

    def _attribute(self, name, tensor):
        if isinstance(tensor, DeviceTensor):
            return {"device": self._gpu.device, "is_cuda": True, "is_cpu": False}.get(name)
        return None

    def _pin(self, name, tensor):
        if name == "is_pinned":
            return isinstance(tensor, PinnedTensor)
        if isinstance(tensor, DeviceTensor):
            raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
        self._check_context("memory is pinned")
        return tensor if isinstance(tensor, PinnedTensor) else tensor.clone().as_subclass(PinnedTensor)

    def _wanted_device(self, name, args, kwargs):
        device = kwargs.get("device")
        if device is None and name == "to":
            device = next((a for a in args[1:] if isinstance(a, (str, torch.device))), None)
            other = next((a for a in args[1:] if isinstance(a, torch.Tensor)), None)
            device = other.device if other is not None else device
        if device is None:
            return self._gpu.device if name == "cuda" else None
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        return self._gpu.device if device.type == "cuda" else device


def _is_device(wanted):
    return wanted is not None and wanted.type == "cuda"


def _tuple(index):
    return index if isinstance(index, tuple) else (index,)
