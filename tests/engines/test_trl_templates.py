"""Chat templates of today: what was sampled is scored, and a warning says where turns are shown anew."""

import logging

import pytest
import torch

from engines import tiny
from engines.running import trainer_of
from gear_rl import Gear, GEARConfig, GEARTrainer
from gear_rl.engines.trl.templates import dropped_thinking, read_template
from gear_rl.model.forwards import hidden_states
from gear_rl.signals.passes import ModelPasses

ALTERNATING = (  # as Mistral's
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] + ' [/INST]' }}{% else %}{{ m['content'] + eos_token }}{% endif %}{% endfor %}"
)
TEMPLATES = {name: read_template(name) for name in ("qwen3", "qwen3_5_think", "llama3", "gemma", "phi3")}
TEMPLATES["mistral"] = ALTERNATING
BEGINS = ("llama3", "gemma", "mistral")
"""Those that write the first token of the model themselves."""


def tokenizer_with(template):
    """The tokenizer of ``tiny`` as Llama's and Gemma's are: it puts its first token before every text."""
    fast = tiny.tokenizer()
    if template in BEGINS:
        fast.add_special_tokens({"bos_token": "<s>"})
        fast.add_bos_token = True
    fast.chat_template = TEMPLATES[template]
    return fast


@pytest.fixture
def seen(monkeypatch):
    """The requests of all passes, and their signals."""
    found, run = [], ModelPasses.run

    def watched(self, request, **more):
        found.append((request, run(self, request, **more)))
        return found[-1][1]

    monkeypatch.setattr(ModelPasses, "run", watched)
    return found


def train_with(tmp_path, template, **changes):
    fast, sampled = tokenizer_with(template), []
    fast.save_pretrained(tmp_path / "model")
    tiny.louder(tiny.model(len(fast))).save_pretrained(tmp_path / "model")
    trainer = trainer_of(tmp_path / "run", str(tmp_path / "model"), Gear(), max_steps=1, **changes)
    trainer.processing_class.chat_template = TEMPLATES[template]
    generate = trainer._generate_single_turn

    def watched(prompt_ids, *more, **options):
        output = generate(prompt_ids, *more, **options)
        sampled.extend(zip(prompt_ids, output[0], strict=True))
        return output

    trainer._generate_single_turn = watched
    trainer.train()
    return trainer, sampled


@pytest.mark.parametrize("prompt", ["render", "splice"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_sampled_tokens_are_scored(tmp_path, seen, template, prompt):
    trainer, sampled = train_with(tmp_path, template, teacher_prompt=prompt, teacher_check_steps=0)
    (request, values), fast = seen[0], trainer.processing_class
    shown = request.student, request.teachers[0]
    for b, (prompt_ids, ids) in enumerate(sampled):
        own = request.completions.ids[b][request.completions.attention[b].bool()]
        assert own.tolist() == ids
        student, teacher = (one.ids_BP[b][one.attention_BP[b].bool()].tolist() for one in shown)
        assert student == prompt_ids
        assert " is " in fast.decode(teacher) and " is " not in fast.decode(student)
        if template in BEGINS:
            assert [ids.count(fast.bos_token_id) for ids in (student, teacher)] == [1, 1]
            assert student[0] == teacher[0] == fast.bos_token_id
    # The divergences are those of these tokens behind these prompts.
    fresh, completions, logs = tiny.louder(tiny.model(len(fast))), request.completions, []
    for prompts in shown:
        ids = torch.cat([prompts.ids_BP, completions.ids], 1)
        attention = torch.cat([prompts.attention_BP, completions.attention], 1)
        with torch.no_grad():
            hidden = hidden_states(fresh, ids, attention, num_tokens=completions.ids.shape[1])
            logs.append((hidden @ fresh.lm_head.weight.T).log_softmax(-1))
    exact = (logs[0].exp() * (logs[0] - logs[1])).sum(-1)
    kept = request.scored_B[:, None] & completions.mask
    assert kept.any()
    torch.testing.assert_close(values["divergence"][kept], exact[kept], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("template", ["qwen3", "qwen3_5_think"])
def test_a_teacher_may_think_where_the_student_does_not(tmp_path, seen, template):
    kwargs = {"chat_template_kwargs": {"enable_thinking": False}}
    kwargs["teacher_chat_template_kwargs"] = {"enable_thinking": True}
    trainer, _ = train_with(tmp_path, template, teacher_check_steps=0, **kwargs)
    student, teacher = (
        trainer.processing_class.decode(one.ids_BP[0][one.attention_BP[0].bool()])
        for one in (seen[0][0].student, seen[0][0].teachers[0])
    )
    assert student.endswith("<think>\n\n</think>\n\n") and not teacher.endswith("</think>\n\n")


def test_which_templates_drop_earlier_thinking():
    def dropped(template):
        fast = tokenizer_with(template) if template in TEMPLATES else tiny.tokenizer()
        fast.chat_template = TEMPLATES.get(template) or read_template(template)
        return dropped_thinking(lambda messages: fast.apply_chat_template(messages, tokenize=False))

    assert dropped("qwen3") == {"user"}
    assert dropped("qwen3_5_think") == {"user"}
    assert dropped("llama3") == set()
    assert "tool" in dropped("deepseek_r1_distill") or "user" in dropped("deepseek_r1_distill")


def test_earlier_thinking_that_is_dropped_from_a_prompt_is_said_once(tmp_path, caplog):
    rows = tiny.rows().to_list()
    for row in rows:
        turns = [
            {"role": "user", "content": "1"},
            {"role": "assistant", "content": "<think>\nso\n</think>\n\n2"},
        ]
        row["prompt"] = [*turns, *row["prompt"]]
    with caplog.at_level(logging.WARNING):
        trainer, sampled = train_with(
            tmp_path, "qwen3", rows=tiny.rows().from_list(rows), teacher_context_message="last"
        )
    [said] = [r.message for r in caplog.records if "leaves out the thinking" in r.message]
    assert said.startswith("prompt: the chat template leaves out the thinking of earlier turns (<think>)")
    assert "so\n</think>" not in trainer.processing_class.decode(sampled[0][0])


def test_a_model_without_a_tool_template_is_refused_before_it_is_loaded(tmp_path):
    def lookup(key: str) -> str:
        """Look a key up.

        Args:
            key: The key.
        """
        return key

    tokenizer_with("phi3").save_pretrained(tmp_path / "model")  # and no weights
    rule = "chat_template_path: the model's chat template shows no tool calls and answers; set chat_template_path"
    given = tmp_path / "run", str(tmp_path / "model"), Gear()

    def refused(**changes):
        config = GEARConfig(**tiny.settings(given[0], **changes))
        return GEARTrainer(given[1], tiny.vowels, config, tiny.rows(), credit=Gear(), tools=[lookup])

    with pytest.raises(ValueError, match=rule):
        refused()
    with pytest.raises(ValueError, match="chat_template_path: 'qwen4' is no file, no folder"):
        refused(chat_template_path="qwen4")
    tiny.model(len(tiny.tokenizer())).save_pretrained(tmp_path / "model")
    trainer = refused(chat_template_path="qwen3_instruct_2507")
    assert trainer.processing_class.chat_template == read_template("qwen3_instruct_2507")
    trainer.train()
