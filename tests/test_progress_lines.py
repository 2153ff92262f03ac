"""A line of progress is never named as the cause of a failure; what states one is, also with numbers in it."""

from __future__ import annotations

import pytest

from tpux.model.program_output import statement

PROGRESS = """
step 9
Step: 1200
step=1200 loss=2.31 lr=3e-4
[2026-11-26 13:00:01] INFO step 12, loss 2.3
I1126 13:00:01.123 1234 train.py:88] step 12
Epoch 3/90
epoch 3: accuracy 0.91
Epoch 1:  42%|####2     | 42/100 [00:10<00:14,  4.02it/s]
100%|██████████| 391/391 [00:21<00:00, 18.15it/s, loss=0.41]
 0%|          | 0/391 [00:00<?, ?it/s]
Iteration 5000, train_loss: 1.23
iter 250: loss 3.1415, time 120.31ms, mfu 17.01%
391/391 [==============================] - 3s 8ms/step - loss: 0.2934 - accuracy: 0.91
3/10
Training: 45%
{'loss': 2.3, 'learning_rate': 5e-05, 'epoch': 0.12}
{"step": 100, "loss": 1.5}
batch 12 of 80
Downloading model.safetensors:  12%|█▏        | 120M/1.00G [00:03<00:22, 39.1MB/s]
global_step: 400
eval_loss = 2.9
loss=nan
completed step: 31, seconds: 1.2, TFLOP/s/device: 80.1, Tokens/s/device: 900.2, loss: 10.8
tokens/s: 120345
Steps: 12
[Epoch 2][Batch 40/200] ppl 12.3
saved checkpoint at step 400
Progress 12 of 40
10 % done
"""
CAUSES = """
error: cannot open data/shard-3/10
the config asks for 8 devices, 4 found
ERROR step 12: out of memory
failed at step 12 of 40
3/4 tests failed
disk is 100% full
usage: train.py [-h] --steps STEPS
No space left on device
data ends before step 300: 12 records are missing
loss is nan at step 3, aborting
please set --epochs
invalid value for --step: 9x
see /a/1/2
"""


def lines(text):
    return text.strip("\n").split("\n")


@pytest.mark.parametrize("line", lines(PROGRESS))
@pytest.mark.parametrize("code", [1, 3, 137])
def test_a_line_of_progress_is_no_cause(line, code):
    assert statement(f"loading data\n{line}\n", code) == ""


@pytest.mark.parametrize("line", lines(CAUSES))
def test_what_states_a_cause_is_named(line):
    assert statement(f"step 8\n{line}\n", 3) == line


@pytest.mark.process
def test_a_failure_without_a_cause_says_the_exit_code_and_where_the_output_is(tpux):
    job = tpux.create("command: {cmd: 'echo step 9; exit 3'}\nwatch: {verdict_grace: 1s}\n")
    said = tpux("wait", job, code=100).stderr
    assert f"job {int(job)} failed: exit code 3\n" in said
    assert f"tpux logs {int(job)}" in said
