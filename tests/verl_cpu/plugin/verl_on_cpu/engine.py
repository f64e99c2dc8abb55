"""verl's own FSDP engine under the device name "cpu": it is registered for cuda and npu alone."""

import dataclasses

from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class FSDPEngineOnCPU(FSDPEngineWithLMHead):
    """Unchanged but for one thing: a reference model is not moved off a device that there is not."""

    def _build_fsdp_module(self, module):
        # An engine that only runs forwards gets CPUOffloadPolicy(pin_memory=True); pinning needs an accelerator.
        configured = self.engine_config
        self.engine_config = dataclasses.replace(configured, forward_only=False)
        try:
            return super()._build_fsdp_module(module)
        finally:
            self.engine_config = configured
