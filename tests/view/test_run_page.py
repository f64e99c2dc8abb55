"""The page of a run: what it is a run of, what its columns mean, and whether it has a baseline."""

import json
import os
import re
from html import unescape
from pathlib import Path

from gear_rl.records import RecordWriter
from gear_rl.view.run import save_run_page
from support.records import record


def page_of(folder: Path) -> str:
    log = [{"step": n, "reward": n / 20, "frac_reward_zero_std": 0.5} for n in range(1, 11)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    os.utime(folder / "trainer_state.json", (86400 * 365, 86400 * 365))
    (folder / "gear.yaml").write_text("model: Qwen/Qwen3-0.6B\ndataset: rows.jsonl\n")
    (folder / "README.md").write_text("### Framework versions\n\n- TRL: 1.16.0\n- Pytorch: 2.13.0\n")
    right = record(3, ids=[1, 2, 3], advantage=0.5, weight=[1.0] * 3, credit=[0.5] * 3)
    wrong = record(
        3, ids=[1, 9, 3], reward=0.0, advantage=-1.0, credit=[-0.5, -2.0, -0.5], weight=[0.5, 2, 0.5]
    )
    (folder / "records.jsonl").unlink(missing_ok=True)
    RecordWriter(folder / "records.jsonl").write([right, right, wrong])
    text = re.sub(r"<(?!/?pre)[^>]*>", "", save_run_page(folder).read_text(encoding="utf-8"))
    return " ".join(unescape(text).split())


def test_the_head_names_method_model_data_day_and_versions(tmp_path):
    page = page_of(tmp_path / "mine")
    assert "gear · Qwen/Qwen3-0.6B on rows.jsonl · mine" in page
    assert "ended 1971-01-01, TRL 1.16.0, Pytorch 2.13.0" in page
    assert "First and last: means of the first and the last 2 steps of 10 logged ones" in page


def test_records_of_another_name_are_shown(tmp_path):
    page_of(tmp_path)
    (tmp_path / "records.jsonl").rename(tmp_path / "other.jsonl")
    assert "Where the credit went" not in save_run_page(tmp_path).read_text(encoding="utf-8")
    (tmp_path / "gear.yaml").write_text("model: m\ndataset: d\nrecord_file: other.jsonl\n")
    assert "Where the credit went" in save_run_page(tmp_path).read_text(encoding="utf-8")


def test_a_run_without_a_comparison_says_so(tmp_path):
    command = f"gear compare --config '{tmp_path / 'my run' / 'gear.yaml'}' --quick"
    page = page_of(tmp_path / "my run")
    assert command in page and f"gear view '{tmp_path / 'my run'}' --html" in page
    (tmp_path / "comparison.jsonl").touch()
    page = page_of(tmp_path / "my run")
    assert command not in page and "The comparison beside it says" in page


def test_marks_are_explained_once_and_the_viewer_is_linked_where_it_is(tmp_path):
    page = page_of(tmp_path)
    assert page.count("GRPO gives every token") == 1 and "blame \u00d7" not in page, "no legend in the panels"
    assert f"gear view {tmp_path} --html" in page
    (tmp_path / "credit.html").touch()
    assert f"gear view {tmp_path} --html" not in page_of(tmp_path)
    assert 'href="credit.html"' in (tmp_path / "report.html").read_text(encoding="utf-8")
