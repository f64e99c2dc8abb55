"""One setting in every spelling: the text of a method, flags, a file, verl's section, and Python."""

import shlex

import pytest

from examples.add_a_method import Uncertain
from gear_rl.method_builder import build_method
from gear_rl.methods import METHODS, Gear, Mixed, Opsd, Rlsd, Shuffled, Stare
from gear_rl.runs.run_config import load_config
from gear_rl.runs.verl.hydra_settings import group_of, read_settings

BASE = "model: arena\ndataset: arena\nreward: arena\n"
PLAIN = {**Gear.presets["plain"]}
# text, flags, what stands under `credit` in a file, what is changed in verl's group, Python; method or error
TABLE = [
    ("gear:alpha=.5", "--credit.alpha .5", "{name: gear, alpha: .5}", {"alpha": 0.5}, lambda: Gear(alpha=0.5),
     Gear(alpha=0.5)),
    ("gear:alpha=2", "--credit.alpha=2", "{name: gear, alpha: 2}", {"alpha": 2}, lambda: Gear(alpha=2),
     Gear(alpha=2.0)),
    ("gear:alpha=-1", "--credit.alpha -1", "{name: gear, alpha: -1}", {"alpha": -1}, lambda: Gear(alpha=-1),
     "alpha: -1; give a number of 0 or more"),
    ("gear:alpha=fast", "--credit.alpha fast", "{name: gear, alpha: fast}", {"alpha": "fast"},
     lambda: Gear(alpha="fast"), "alpha: 'fast'; give a number of 0 or more"),
    ("gear:alpha=true", "--credit.alpha true", "{name: gear, alpha: true}", {"alpha": True},
     lambda: Gear(alpha=True), "alpha: True; give a number of 0 or more"),
    ("gear:alhpa=1", "--credit.alhpa 1", "{name: gear, alhpa: 1}", {"alhpa": 1}, lambda: Gear(alhpa=1),
     "alhpa: no such setting"),
    ("gear:max_segment_tokens=8.0", "--credit.max-segment-tokens 8.0", "{name: gear, max_segment_tokens: 8.0}",
     {"max_segment_tokens": 8.0}, lambda: Gear(max_segment_tokens=8.0),
     "max_segment_tokens: 8.0; give a whole number of 1 or more, or None"),
    ("gear:clip=(0.5,2)", "--credit.clip (0.5,2)", "{name: gear, clip: [0.5, 2]}", {"clip": [0.5, 2]},
     lambda: Gear(clip=(0.5, 2)), Gear(clip=(0.5, 2.0))),
    ("gear:clip=[2,3]", "--credit.clip '[2, 3]'", "{name: gear, clip: [2, 3]}", {"clip": [2, 3]},
     lambda: Gear(clip=[2, 3]),
     "clip: [2, 3]; give [a number above 0, at most 1; a number of 1 or more], or None"),
    ("gear:end_rule=line", "--credit.end_rule line", "{name: gear, end_rule: line}", {"end_rule": "line"},
     lambda: Gear(end_rule="line"), Gear(end_rule='line')),
    ("gear:sign_mode=awear", "--credit.sign_mode awear", "{name: gear, sign_mode: awear}",
     {"sign_mode": "awear"}, lambda: Gear(sign_mode="awear"),
     "sign_mode: 'awear'; give agnostic, aware or neg_only"),
    ("gear:end_rule=fixed_length", "--credit.end_rule fixed_length", "{name: gear, end_rule: fixed_length}",
     {"end_rule": "fixed_length"}, lambda: Gear(end_rule="fixed_length"),
     "max_segment_tokens: end_rule='fixed_length' needs a length, for example 8"),
    ("gear:alpha=3,plain", "--credit.alpha 3 --credit gear:plain", "{alpha: 3, name: 'gear:plain'}",
     {"alpha": 3, "credit": "gear:plain"}, lambda: Gear(**PLAIN | {"alpha": 3}),
     Gear(departures='all', aftermath=0.0, end_threshold=0.5, alpha=3.0)),
    ("gear:plain,alpha=3", "--credit gear:plain,alpha=3", "gear:plain,alpha=3", {"credit": "gear:plain,alpha=3"},
     lambda: build_method({"name": "gear", **PLAIN, "alpha": 3}),
     Gear(departures='all', aftermath=0.0, end_threshold=0.5, alpha=3.0)),
    ("opsd:sampled=True", "--credit opsd --credit.sampled true", "{name: opsd, sampled: true}",
     {"credit": "opsd", "sampled": True}, lambda: Opsd(sampled=True), Opsd(sampled=True)),
    ("opsd:sampled=yes", "--credit opsd --credit.sampled yes", "{name: opsd, sampled: yes}",
     {"credit": "opsd", "sampled": "yes"}, lambda: Opsd(sampled="yes"), "sampled: 'yes'; give true or false"),
    ("rlsd:decay_steps=None", "--credit rlsd --credit.decay_steps null", "{name: rlsd, decay_steps: ~}",
     {"credit": "rlsd", "decay_steps": None}, lambda: Rlsd(decay_steps=None), Rlsd(decay_steps=None)),
    ("shuffled:of.alpha=1", "--credit.of.alpha 1 --credit shuffled", "{name: shuffled, of: {alpha: 1}}",
     {"credit": "shuffled", "of": {"alpha": 1}}, lambda: Shuffled(of=Gear(alpha=1)),
     Shuffled(of=Gear(alpha=1.0))),
    ("shuffled:of=rlsd,of.strength=2", "--credit shuffled --credit.of.strength 2 --credit.of rlsd",
     "{name: shuffled, of: {name: rlsd, strength: 2}}",
     {"credit": "shuffled", "of": {"name": "rlsd", "strength": 2}},
     lambda: build_method({"name": "rlsd", "strength": 2}, "credit.of"),
     "of.strength: 2; give a number from 0 to 1"),
    ("shuffled:of.alpha=3,of=gear:plain", "--credit.of.alpha 3 --credit.of gear:plain --credit shuffled",
     "{name: shuffled, of: {alpha: 3, name: 'gear:plain'}}",
     {"credit": "shuffled", "of": {"alpha": 3, "name": "gear:plain"}},
     lambda: Shuffled(of=Gear(**PLAIN | {"alpha": 3})),
     Shuffled(of=Gear(departures='all', aftermath=0.0, end_threshold=0.5, alpha=3.0))),
    ("gear*stare:share=0.2", "--credit gear*stare:share=0.2", "gear*stare:share=0.2",
     {"credit": "gear*stare:share=0.2"}, lambda: Mixed(first=Gear(), second=Stare(share=0.2)),
     Mixed(second=Stare(share=0.2))),
    ("geer:tokens", "--credit geer:tokens", "geer:tokens", {"credit": "geer:tokens"},
     lambda: build_method({"name": "geer:tokens"}), "credit: no method 'geer'; did you mean gear?"),
    ("examples.add_a_method:Uncertain:fork_nats=1",
     "--credit examples.add_a_method:Uncertain --credit.fork_nats 1",
     "{name: 'examples.add_a_method:Uncertain', fork_nats: 1}",
     {"credit": "examples.add_a_method:Uncertain", "fork_nats": 1}, lambda: Uncertain(fork_nats=1.0),
     Uncertain(fork_nats=1.0)),
    ("examples.add_a_method:Uncertain:fork_nats=much",
     "--credit.fork_nats much --credit examples.add_a_method:Uncertain",
     "{name: 'examples.add_a_method:Uncertain', fork_nats: much}",
     {"credit": "examples.add_a_method:Uncertain", "fork_nats": "much"},
     lambda: build_method({"name": "examples.add_a_method:Uncertain", "fork_nats": "much"}),
     "fork_nats: 'much'; give a number"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "flags", "under", "changes", "python", "result"), TABLE)
def test_every_spelling_gives_the_same(tmp_path, text, flags, under, changes, python, result):
    file, base = tmp_path / "run.yaml", tmp_path / "base.yaml"
    file.write_text(f"{BASE}credit: {under}\n")
    base.write_text(BASE)
    name = changes.get("credit", "gear").partition(":")[0]
    group = group_of(name) if name in METHODS else {}  # Hydra puts the changes on top of it
    read = {
        "text": lambda: build_method(text),
        "flags": lambda: build_method(load_config(base, shlex.split(flags)).credit),
        "file": lambda: build_method(load_config(file).credit),
        "verl": lambda: read_settings(group | changes).method,
        "Python": python,
    }
    for spelling, method_of in read.items():
        if isinstance(result, str):
            with pytest.raises(ValueError) as error:
                method_of()
            assert result in str(error.value), spelling
        else:
            assert repr(method_of()) == repr(result), spelling


def test_a_setting_that_stands_twice_is_named():
    with pytest.raises(ValueError, match="credit: 'gear:alpha=2,alpha=3' sets alpha twice; leave one out"):
        build_method("gear:alpha=2,alpha=3")
