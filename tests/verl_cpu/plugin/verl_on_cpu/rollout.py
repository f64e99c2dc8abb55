"""vLLM's CPU worker, such that its weights can be loaded again after every update of the policy."""

from vllm.model_executor.layers.linear import LinearBase
from vllm.v1.worker.cpu_worker import CPUWorker


class ReloadableCPUWorker(CPUWorker):
    """Keeps the linear weights as they were loaded.

    vLLM packs them for oneDNN and throws the originals away; the next weight sync then fails, because a packed
    parameter has no `weight_loader`. vLLM has a switch against packing, which this sets.
    """

    def load_model(self, *args, **kwargs):
        LinearBase._cpu_skip_gemm_dispatch = True
        return super().load_model(*args, **kwargs)
