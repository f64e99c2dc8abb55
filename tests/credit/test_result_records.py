"""What a record shows of a completion."""

import torch

from engines import tiny
from gear_rl.credit.credit_config import CreditConfig
from gear_rl.credit.step import step
from gear_rl.methods import Gear
from support import batches
from support.batches import PlainEngine

BYTES, LLAMA = tiny.tokenizer(), tiny.llama2_tokenizer()


def test_records_show_the_text_of_the_completion():
    net = tiny.model(len(LLAMA))
    ids = LLAMA("It is 42. So é")["input_ids"]
    prompt = LLAMA("[INST] It is")["input_ids"]
    batch = batches.batch_of(
        torch.tensor([ids] * 2),
        student=batches.Prompts(
            ids_BP=torch.tensor([prompt] * 2), attention_BP=torch.ones(2, len(prompt)).long()
        ),
        prompts=[[{"role": "user", "content": "It is"}]] * 2,
        rows=[{"answer": "42"}] * 2,
    )
    config = CreditConfig(teacher_model_kind="live").resolved(Gear())
    engine = PlainEngine(LLAMA, net)
    step(batch, Gear(), engine, config)
    assert "".join(engine.records[0].tokens) == "It is 42. So \ufffd\ufffd"
