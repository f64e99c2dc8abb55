"""Rollouts of a trainer outside of its training."""

import json

from gear_rl.lab.sampling import sample, sampled_engine
from gear_rl.lab.teacher_scores import examine, sampling_config, teacher_config
from gear_rl.runs.trl_run import make_trainer


def test_every_batch_is_scored_with_the_functions_that_its_own_prompts_show(tmp_path):
    """The last batch has fewer rollouts than the first, and its functions are others."""
    run = teacher_config(None, "arena", "arena/errands/easy", None, ["--per_device_train_batch_size", "4"])
    found, about = examine(run, n=3, samples=2)
    assert about["sources"] == ["environment"] and found.reads.prompts == 3
    functions = [
        {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
        for name in ("add", "double", "halve")
    ]
    rows = tmp_path / "rows.jsonl"
    lines = [
        {"prompt": [{"role": "user", "content": "12 +5"}], "solution": function["function"]["name"]}
        | {"tools": [function]}
        for function in functions
    ]
    rows.write_text("\n".join(map(json.dumps, lines)))
    words = ["--per_device_train_batch_size", "4", "--max_completion_length", "4"]
    run = teacher_config(None, "arena", str(rows), None, words)
    trainer = make_trainer(sampling_config(run, 2, str(tmp_path / "run")))
    rendered = []
    for part in (lines[:2], lines[2:]):
        batch = sample(trainer, part, seed=0)
        rendered.append((sampled_engine(trainer), batch))
    for engine, batch in rendered:
        shown = engine.render(batch.prompts, None)
        assert [engine.tokenizer.decode(ids).count("halve") for ids in shown] == [
            int(row["solution"] == "halve") for row in batch.rows
        ]
        own = batch.student.ids_BP, batch.student.attention_BP.bool()
        assert shown == [ids[kept].tolist() for ids, kept in zip(*own, strict=True)]
