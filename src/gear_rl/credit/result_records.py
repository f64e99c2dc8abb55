"""From the result of a credit step to the records of the viewer. Knows no trainer."""

from gear_rl.credit.metrics import weights
from gear_rl.credit.plan import FALLBACKS, CreditPlan, CreditResult
from gear_rl.engine import Tokenizer, token_texts
from gear_rl.records import Record
from gear_rl.rollouts import Prompts
from gear_rl.tensor.lists import float_list, int_list
from gear_rl.types import is_per_row


def records_of(plan: CreditPlan, result: CreditResult, tokenizer: Tokenizer) -> list[Record]:
    """One record per completion: its tokens without padding, its signals and its credit.

    Signals are left out where nothing was scored. A truncated completion that the engine masked as a whole has no
    tokens. Holds the student's prompt, and the teacher's where a context was found.
    """
    batch, credit, signals = plan.batch, result.credit, result.signals
    cut_off = batch.completions.truncated
    weight = weights(credit, batch.advantage_B, signals.mask)
    # A record has the ids of its tokens already.
    names = [signal.name for signal in plan.signals if not is_per_row(signal.name)]
    shown = {name: signals.get(name) for name in names if name != "token_id"}
    records: list[Record] = []
    for b, kept in enumerate(batch.completions.attention.bool() | signals.mask):
        own = batch.completions.ids[b][kept]
        [tokens] = token_texts(tokenizer, own[None])
        has_teacher = plan.teacher.prompts and plan.teacher.sources[b] is not None
        records.append(
            Record(
                step=batch.step + 1,  # as the trainer counts in its log
                group=batch.group[b],
                method=plan.method.name,
                prompt=_text(batch.student, b, tokenizer),
                tokens=tokens,
                ids=int_list(own),
                mask=[int(trained) for trained in int_list(signals.mask[b][kept])],
                turn=int_list(signals.turn_id[b][kept]),
                segment=int_list(credit.segment_id[b][kept]),
                reward=batch.rewards[b],
                advantage=float(batch.advantage_B[b]),
                credit=float_list(credit.advantage[b][kept]),
                weight=float_list(weight[b][kept]),
                signals={name: float_list(x[b][kept]) for name, x in shown.items() if result.scored_B[b]},
                fallback=next((name for name in FALLBACKS if result.fallback_B[name][b]), None),
                context=plan.teacher.sources[b],
                teacher_prompt=_text(plan.teacher.prompts[0], b, tokenizer) if has_teacher else None,
                tools=dict(batch.tools.counts[b]) if batch.tools else {},
                truncated=bool(cut_off) and cut_off[b],
            )
        )
    return records


def _text(prompts: Prompts, b: int, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(int_list(prompts.ids_BP[b][prompts.attention_BP[b].bool()]))
