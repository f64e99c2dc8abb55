"""Settings of the credit step."""

import re

import pytest

from gear_rl.credit.credit_config import CreditConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"teacher_prompt": "shout"}, "teacher_prompt: 'shout'; give render or splice"),
        ({"teacher_context_message": "2"}, "teacher_context_message: '2'; give first or last, or None"),
        ({"teacher_prompt": "splice", "teacher_prompt_template": "x"}, "'x' lacks {privileged_context}"),
        ({"credit_batch_size": 0}, "credit_batch_size: 0; give a whole number of 1 or more"),
        ({"teacher_update_rate": 1.5}, "teacher_update_rate: 1.5; give a number from 0 to 1, or None"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_wrong_setting_is_named(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        CreditConfig(**settings)
