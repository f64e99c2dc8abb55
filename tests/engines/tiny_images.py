"""Vision-language models of a few thousand random weights, and rows with pictures of noise."""

from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from PIL import Image
from transformers import (
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    ProcessorMixin,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLProcessor,
    Qwen3Config,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from engines import tiny

MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "tie_word_embeddings": True,
}
LLAVA_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for block in message.content %}"
    "{{ '<|image_pad|>' if block.type == 'image' else block.text }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ImageProcessor(Qwen2VLProcessor):
    """Qwen2-VL's without its part for videos, which needs torchvision."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None) -> None:
        self.image_token, self.video_token = MARKS[2:]
        self.image_token_id, self.video_token_id = tokenizer.convert_tokens_to_ids([*MARKS[2:]])
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


def tokenizer() -> Any:
    fast = tiny.tokenizer()
    fast.add_tokens([*MARKS], special_tokens=True)
    return fast


def qwen2_vl() -> tuple[Any, Any]:
    """As many tokens for a picture as it is large, in three dimensions."""
    fast = tokenizer()
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    config = Qwen2VLConfig(
        text_config={
            **TEXT,
            "vocab_size": len(fast),
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4},
        },
        vision_config={
            "depth": 1,
            "embed_dim": 16,
            "hidden_size": 32,
            "num_heads": 2,
            "mlp_ratio": 2,
            "patch_size": 4,
        },
        tie_word_embeddings=True,
        **dict(zip(names, fast.convert_tokens_to_ids([*MARKS]), strict=True)),
    )
    size = {"shortest_edge": 64, "longest_edge": 1024}
    template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5_vl.jinja").read_text()
    processor = ImageProcessor(Qwen2VLImageProcessorPil(patch_size=4, size=size), fast, template)
    torch.manual_seed(0)
    return tiny.louder(Qwen2VLForConditionalGeneration(config)), processor


def llava() -> tuple[Any, Any]:
    """Four tokens for a picture, and no types of tokens."""
    fast = tokenizer()
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=16,
            patch_size=8,
        ),
        text_config=Qwen3Config(**TEXT, vocab_size=len(fast), head_dim=16),
        image_token_id=fast.convert_tokens_to_ids(MARKS[2]),
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    processor = LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}),
        fast,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=MARKS[2],
        chat_template=LLAVA_TEMPLATE,
    )
    torch.manual_seed(0)
    return tiny.louder(LlavaForConditionalGeneration(config)), processor


MODELS = {"qwen2_vl": qwen2_vl, "llava": llava}


def picture(seed: int, size: int = 16) -> Image.Image:
    noise = torch.randint(256, (size, size, 3), generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(noise.to(torch.uint8).numpy())


def rows(counts: list[int], **columns: Any) -> Dataset:
    """A row with each number of pictures, of two sizes, so that no two rows have equally many pixels."""
    return Dataset.from_list(
        [
            {**row, "images": [picture(100 * i + k, 16 if k % 2 else 24) for k in range(count)], **columns}
            for i, (row, count) in enumerate(zip(tiny.rows(len(counts)), counts, strict=True))
        ]
    )
