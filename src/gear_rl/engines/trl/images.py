"""The images of the rollouts under way, as a model takes them beside the ids of some of the rows."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid

PIXELS = (
    "pixel_values",
    "image_grid_thw",
    "pixel_attention_mask",
    "spatial_shapes",
    "image_sizes",
    "image_position_ids",
)
TYPES = ("token_type_ids", "mm_token_type_ids")


class Images:
    """The images of a batch of TRL's; student and teacher of a row see the same.

    The type of a token (text or image) depends on its id alone, so that the rows of ``output`` tell it for any
    prompt. Two rows with one image each, of one pixel:

    >>> ids = torch.tensor([[9, 5], [9, 6]])
    >>> output = {"prompt_ids": ids, "completion_ids": ids[:, 1:], "num_images": [1, 1]}
    >>> output |= {"pixel_values": torch.tensor([[0.1], [0.2]]), "token_type_ids": ids[:, [0, 1, 1]] // 9}
    >>> Images(output)(torch.tensor([1]), torch.tensor([[7, 9, 6, 6]]))
    {'pixel_values': tensor([[0.2000]]), 'token_type_ids': tensor([[0, 1, 0, 0]])}
    """

    def __init__(self, output: Mapping[str, Any]) -> None:
        self._rows: dict[str, Any] = split_pixel_values_by_grid(dict(output))
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
        self._tokens = {
            name: [(int(kind), ids[types == kind].unique()) for kind in types.unique()]
            for name, types in ((name, output[name]) for name in TYPES if name in output)
        }

    def __call__(self, batch: Int[Tensor, " N"], ids_NS: Int[Tensor, "N S"]) -> dict[str, Tensor]:
        """What the model takes beside these ids of some rows; no pixels where none of them has an image."""
        own: dict[str, Any] = {}
        for name in PIXELS:
            values = self._rows.get(name)
            if values is not None:
                own[name] = [values[b] for b in batch.tolist()] if isinstance(values, list) else values[batch]
        own = unsplit_pixel_values_by_grid(own)
        if "pixel_values" in own and own["pixel_values"].numel() == 0:
            own = {}
        for name, kinds in self._tokens.items():
            own[name] = torch.zeros_like(ids_NS)
            for kind, tokens in kinds:
                own[name][torch.isin(ids_NS, tokens)] = kind
        return own


def images_of(output: Mapping[str, Any]) -> Images | None:
    """Those of a batch of TRL's, or of a micro-batch; None where the model is shown none.

    >>> images_of({"prompt_ids": torch.tensor([[5]])})
    """
    return Images(output) if "num_images" in output else None
