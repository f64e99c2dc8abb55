"""GPT-2 in the real trainer: prompts of many lengths, padded on the left by TRL."""

import torch

from engines import tiny
from engines.positions import made
from engines.probing import Probe
from engines.running import trainer_of
from gear_rl import GEARTrainer


@torch.no_grad()
def alone(model, prompt, completion):
    """The log-prob of each token of one row without padding."""
    logits = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1)[torch.arange(len(completion)), completion]


def test_the_trainers_signals_are_those_of_each_row_alone(tmp_path, monkeypatch):
    """Also where TRL makes a pass for its old log-probabilities, at other positions."""
    fast, gpt2 = tiny.tokenizer(), str(tmp_path / "gpt2")
    made("gpt2", len(fast)).save_pretrained(gpt2)
    fast.save_pretrained(gpt2)
    every = list(tiny.rows())
    every[::2] = [
        row | {"prompt": [{"role": "user", "content": "1 plus 2 plus 3 plus 4"}]} for row in every[::2]
    ]
    outputs, spread = [], GEARTrainer._run_credit_step
    monkeypatch.setattr(
        GEARTrainer, "_run_credit_step", lambda *given: outputs.append(dict(given[1])) or spread(*given)
    )
    probe = Probe(needs=("student_logprob",), additive=True)
    changes = {"rows": tiny.rows().from_list(every), "steps_per_generation": 4, "max_steps": 1}
    trainer = trainer_of(tmp_path, gpt2, probe, **changes)
    trainer.train()
    # A first model of the same weights, since this one has made a step.
    first, output = type(trainer.model).from_pretrained(gpt2).eval(), outputs[0]
    found = probe.shown[0][1].student_logprob
    for b in range(len(found)):
        keep, kept = output["prompt_mask"][b].bool(), output["completion_mask"][b].bool()
        prompt, ids = output["prompt_ids"][b][keep].tolist(), output["completion_ids"][b][kept].tolist()
        torch.testing.assert_close(found[b][kept], alone(first, prompt, ids), atol=2e-4, rtol=1e-3)
    padded = output["prompt_mask"][:, 0] == 0
    assert padded.any() and not padded.all(), "the batch must have rows with padding"
    far = (output["old_per_token_logps"] - found)[padded][output["completion_mask"][padded].bool()]
    assert far.abs().max() > 0.1, "TRL's own are those of other positions: what the warning says"
