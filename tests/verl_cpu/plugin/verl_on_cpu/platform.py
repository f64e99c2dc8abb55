"""verl's description of a device, for a CPU: what an accelerator would answer, from torch or "there is none"."""

import contextlib
import os
import types

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def _nothing(*args: object, **kwargs: object) -> None:
    """For whatever only an accelerator has: caches to empty, streams to wait for."""


def _no_bytes(*args: object) -> int:
    return 0


class _DeviceModule(types.ModuleType):
    """`torch.cpu`, and what verl calls on `torch.cuda` beside it."""

    empty_cache = ipc_collect = reset_peak_memory_stats = set_per_process_memory_fraction = _nothing
    set_device = synchronize = _nothing
    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = _no_bytes
    get_rng_state = staticmethod(lambda *device: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, *device: torch.set_rng_state(state))
    mem_get_info = staticmethod(lambda *device: (0, 0))
    get_device_name = staticmethod(lambda *device: "cpu")
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)

    def __getattr__(self, name: str):
        return getattr(torch.cpu, name)


_MODULE = _DeviceModule("verl_on_cpu.device")


def _make_group() -> None:
    """The process group of a worker, on gloo, once Ray has said who is who."""
    known = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    if known and torch.distributed.is_available() and not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "gloo",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            init_method=os.environ.get("DIST_INIT_METHOD"),
        )


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """Chosen by `VERL_PLATFORM=cpu`."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _MODULE

    def is_available(self):
        return True

    def device_count(self):
        return 1

    def current_device(self):
        return torch.device("cpu")  # goes into tensor.to(...), where a number would mean an accelerator

    def get_device_capability(self, device_index=0):
        return (None, None)

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed
    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    @contextlib.contextmanager
    def nvtx_range(self, msg):
        yield

    def communication_backend_name(self):
        # verl appends this name to "cpu:gloo,cpu:", which torch refuses as a device named twice. It does so right
        # before it would make the group, and makes none where there is one.
        _make_group()
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self):
        return "GPU"  # Ray counts what it is given: ray_init.num_gpus=2 places two ranks without any hardware

    def ray_noset_envvars(self):
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self):
        return False  # weights then travel to vLLM through shared memory
