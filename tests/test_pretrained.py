"""With a pretrained model that `gear model smollm2` fetched: `make test-lm`."""

import json

import pytest
import torch

from gear_rl.runs.model_wheels import kept_folder
from support.commands import gear

pytestmark = pytest.mark.lm


@pytest.fixture(scope="module")
def smollm2() -> str:
    folder = kept_folder()
    if folder is None:
        pytest.skip("no pretrained model on this machine; make test-lm fetches one")
    return str(folder)


def test_its_weights_are_the_ones_that_can_talk(smollm2):
    """A head that is permuted, or a scale that is lost, still writes tokens."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    assert json.loads((kept_folder() / "config.json").read_text())["dtype"] == "bfloat16"
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**ids, max_new_tokens=16, do_sample=False)
    assert "Paris" in tokenizer.decode(out[0, ids["input_ids"].shape[1] :])


@pytest.mark.parametrize(("column", "informed"), [("solution", True), ("answer", False)])
def test_the_teacher_reads_a_worked_solution_and_not_an_answer(smollm2, column, informed):
    words = [
        "--data",
        "benchmarks.word_problems:together",
        "--n",
        "32",
        "--samples",
        "2",
        "--max_completion_length",
        "40",
    ]
    done = gear("teacher", "--model", "smollm2", *words, "--privileged_column", column, "--json")
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout)["verdict"] == "informed") == informed, done.stdout
