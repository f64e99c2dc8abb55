"""What a run prints, and what its trackers get."""

from ast import literal_eval

import pytest
from transformers.trainer_callback import TrainerCallback

from engines.running import history, trainer_of
from gear_rl import Gear
from gear_rl.engines.trl.printing import PRINTED

# --- what is printed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("disable_tqdm", [True, False])
def test_few_of_our_metrics_are_printed_and_trackers_get_all(tiny_model, tmp_path, capsys, disable_tqdm):
    trainer, tracked = trainer_of(tmp_path, tiny_model, Gear(), max_steps=2, disable_tqdm=disable_tqdm), []

    class Tracker(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            tracked.append({**logs})

    trainer.add_callback(Tracker)
    trainer.train()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{'loss'")]
    printed = [{key for key in literal_eval(line) if key.startswith("gear/")} for line in lines]
    assert len(printed) == 2 and set.union(*printed) <= set(PRINTED) and "'reward':" in lines[0]
    assert {"gear/scored", "gear/fallbacks"} <= printed[0]
    assert all("gear/weight/max" in logs and "gear/divergence/mean" in logs for logs in tracked[:2])
    assert history(trainer, "gear/weight/max")
