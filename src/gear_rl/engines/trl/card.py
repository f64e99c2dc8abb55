"""What TRL's model card leaves out or gets wrong for a run with token credit."""

import re

from gear_rl.types import CreditAssigner

_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{5})")


def complete_card(card: str, credit: CreditAssigner, *, model: str, data: str | None, folder: str) -> str:
    """TRL's card with the method, its source, and the names of what is on no hub.

    ``model`` was trained, on the rows ``data``, and lies in ``folder`` now.

    >>> from gear_rl.methods.gear import Gear
    >>> card = 'a fine-tuned version of [None](https://huggingface.co/None). It was trained with GRPO.'
    >>> print(complete_card(card, Gear(), model="arena", data="sums", folder="runs/train"))
    a fine-tuned version of `arena` on `sums`. It was trained with GRPO.
    """
    on_data = f" on `{data}`" if data else ""
    card = card.replace("[None](https://huggingface.co/None)", f"`{model}`{on_data}")
    card = card.replace('model="None"', f'model="{folder}"')
    method = f"Token credit: `{credit.name}` of gear-rl (source: {credit.source})."
    card = re.sub(r"^This model was trained with .*", lambda line: f"{line[0]}\n\n{method}", card, flags=re.M)
    cited = _ARXIV.search(credit.source)
    if cited is None or cited[1] in card.partition("## Citations")[2]:  # TRL cites GRPO's own
        return card
    entry = (
        f"Cite the source of `{credit.name}` as:\n\n```bibtex\n@misc{{{credit.name},\n"
        f"    eprint        = {{{cited[1]}}},\n    archivePrefix = {{arXiv}},\n"
        f"    url           = {{https://arxiv.org/abs/{cited[1]}}},\n}}\n```\n\n"
    )
    return card.replace("Cite TRL as:", f"{entry}Cite TRL as:")
