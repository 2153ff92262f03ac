"""What the patterns read from what programs print."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tpux import ConfigError, Progress
from tpux_progress import OTHER_TEXT, progress
from tpux_progress.patterns import PATTERNS, first_step, read_progress
from tpux_testing import job, run_job


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step 1200 loss 0.31", Progress(1200, loss="0.31")),
        ("Step: 1,200/5,000 | epoch: 3 | loss=1.5e-3", Progress(1200, 3, "1.5e-3", total=5000)),
        ("{'step': 7, 'train_loss': 2.0, 'epoch': 1}", Progress(7, 1, "2.0")),
        ('{"global_step": 8, "loss": NaN}', Progress(8, loss="NaN")),
        ("I1122 08:00:00 train.py:10] iter [20] (0.5 s/step): train/loss -inf", Progress(20, loss="-inf")),
        ("Epoch 2/10\nstep 1\nstep 2\n", Progress(2, 2)),
        ("epoch 1.5 time/step: 0.25", Progress()),
        ("footstep 12, lossless 3, 4 steps", Progress()),
        ("Compiling module jit_train for TPU", Progress(compiling=True)),
        ("compiling\nstep 1", Progress(1)),
        ("Initialized persistent compilation cache at /tmp/cache", Progress()),
        ("Persistent compilation cache hit for 'jit_eval'", Progress()),
        ("Using JAX compilation_cache_dir /tmp/x, skipping compilation", Progress()),
        ("step 1\nrecompiling? no\nstarting compilation", Progress(1, compiling=True)),
        ("Compiling train\nepoch 3 loss 0.2", Progress(epoch=3, loss="0.2")),
        ("epoch 3 loss 0.2\nCompiling eval", Progress(epoch=3, loss="0.2", compiling=True)),
        ("Compiling train\nFinished XLA compilation of jit(train) in 12.5 sec", Progress()),
        ("Finished XLA compilation of jit(train) in 12.5 sec\nCompiling eval", Progress(compiling=True)),
        ("Compiling train\nDone compiling\n", Progress()),
        ("XLA compilation took 3 s", Progress()),
        ("Finished loading, compiling", Progress(compiling=True)),
        ("10%|█   | 5/50 [00:01<00:09, loss=0.7]", Progress(loss="0.7")),
        ("", Progress()),
        (
            "wandb: \U0001f680 View run fast-1 at: https://w.ai/lab/runs/a\nstep 1\n",
            Progress(1, url="https://w.ai/lab/runs/a"),
        ),
        ("compiling\nView run at https://w.ai/b\n", Progress(compiling=True, url="https://w.ai/b")),
        ("View run at https://w.ai/b\nView run at https://w.ai/", Progress(url="https://w.ai/b")),
        ("View project at https://w.ai/lab\n", Progress()),
    ],
)
def test_what_lines_say(text: str, expected: Progress) -> None:
    assert read_progress(text, PATTERNS) == expected


@pytest.mark.parametrize(
    "text",
    [
        "  Total optimization steps = 3,750",  # Hugging Face's Trainer
        "  Gradient Accumulation steps = 4",
        "***** Running training *****\n  Num Epochs = 3\n  Num steps = 300",
        "max steps = 5000",
        "max_steps: 5000, warmup_steps: 500, num_train_steps=5000",
        "Max step: 5000; total step 5000; maximum iterations = 90000; max iter: 90000",
        "warmup steps 500, decay steps 4000, eval steps: 50, save steps 100, train steps = 9, number of steps: 9",
        "python train.py --max-steps 3000 --steps 3000 --epoch 3 --warmup-steps=10",
        "training steps: 5000, training_steps 5000",
        "steps per epoch: 300, steps_per_epoch=300",  # Keras
        "max epoch: 90, total epoch 90",
        "time per step: 3, 15ms/step 3, 3 s/step: 4, tokens/step 4096, s/iter 2, time/step 1",
        "Steps:  10%|█   | 5/50 [00:01<00:09]",  # diffusers
        "step 12.5% epoch 10 %",
        "saving every 500 steps\n100 files, at each step\n7 left",
    ],
)
def test_totals_are_not_how_far_a_program_has_come(text: str) -> None:
    assert replace(read_progress(text, PATTERNS), total=None) == Progress()
    assert first_step(f"{text}\nstep 7", PATTERNS["step"]) == 7


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ("  Total optimization steps = 3,750\nstep 7", 3750),
        ("max_steps: 5000, warmup_steps: 500\nstep 7", 5000),
        ("max steps: 5000\nstep 7/40", 40),
        ("step 7", None),
        ("eval_max_steps: 50\nstep 7", None),
        ("step 7 of the warmup", None),
    ],
)
def test_totals(text: str, total: int | None) -> None:
    found = read_progress(text, PATTERNS)
    assert (found.step, found.total) == (7, total)
    assert read_progress(text, {**PATTERNS, "total": None}).total is None
    assert str(found) == {3750: "0% 7/3750", 5000: "0% 7/5000", 40: "17% 7/40", None: "step 7"}[total]
    assert str(replace(found, step=9000)) == "step 9000", "a total that is exceeded is of something else"
    assert found.followed_by(Progress(8)).total == total


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "completed step: 12, seconds: 1.234, TFLOP/s/device: 98.7, loss: 10.512",
            Progress(12, loss="10.512"),
        ),  # MaxText
        ("To see full metrics 'tensorboard'\ncompleted profiler step: 4", Progress(4)),
        ("{'loss': 2.1, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 3}", Progress(epoch=3, loss="2.1")),
        ("[metrics_writer.py:61] [1000] train/loss=2.5, step=1000", Progress(1000, loss="2.5")),
        ("Training: step 1000/20,000", Progress(1000, total=20000)),  # t5x
        ("INFO Saving checkpoint at step 500 of 5000 total steps", Progress(500, total=5000)),
        ("Epoch 2/10\n 37/375 [===>....] - ETA: 3s - loss: 0.5", Progress(epoch=2, loss="0.5")),  # Keras
        ("global_steps: 120; global step = 121", Progress(121)),
        ("{'train_step': 5, 'train/step': 6}", Progress(6)),
        ("steps: 120, loss: 0.5", Progress(120, loss="0.5")),
        ("epoch 3, iters: 100", Progress(100, 3)),
        ("max steps = 5000 | step   =   [ 7 / 5000 ]", Progress(7, total=5000)),
        ("Iteration 1,234,567: loss = -1.5", Progress(1234567, loss="-1.5")),
        ("eta: 0:01:00  iter: 19  total_loss: 2.1", Progress(19)),  # Detectron2
    ],
)
def test_formats_of_frameworks(text: str, expected: Progress) -> None:
    assert read_progress(text, PATTERNS) == expected


@pytest.mark.parametrize(
    "text",
    [
        "step: 12k",
        "step 1_000",
        "step 1e3, step 1e+3",
        "step: 2M",
        "step 1.2k",
        "step 1,200k, step 1,200.5",
        "epoch 1e1, epoch 2k",
        "step 12ms",
        "validation step 12, Val step: 13, eval/step 14, test step 15, Evaluation step 16, validation steps: 17",
    ],
)
def test_what_is_not_the_number_of_a_training_step_is_left_out(text: str) -> None:
    assert read_progress(text, PATTERNS) == Progress()
    assert read_progress(f"step 7 epoch 2\n{text}", PATTERNS) == Progress(7, 2)


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("step 12/500", 12),
        ("step 5,0.31", 5),
        ("step 1234,567", 1234),
        ("[step 12]", 12),
        ("step 12: loss", 12),
        ("step 12.", 12),
        ("step 12\x1b[0m", 12),
        ("step 12\u6b65", 12),
        ("latest step 9", 9),
        ("eval/global_step: 1000", 1000),
        ("Evaluating at step 20", 20),
        ("eval: step 30", 30),
    ],
)
def test_a_step_in_its_surroundings(text: str, step: int) -> None:
    assert read_progress(text, {"step": PATTERNS["step"]}) == Progress(step)


@pytest.mark.parametrize("part", ["step", "step" + " " * 5000 + "loss" + " " * 5000, "step " + "1" * 9999, "View run "])
def test_a_line_of_a_megabyte_is_searched_without_backtracking(part: str) -> None:
    text = part * (1024 * 1024 // len(part)) + ".5\n"
    assert read_progress(text, PATTERNS) == Progress()
    assert first_step(text, PATTERNS["step"]) is None


def test_a_pattern_for_the_progress_bar_of_a_training() -> None:
    evaluation = " 4%|▍ | 2/50 [00:01<00:24, 2.00it/s]"
    text = (
        f"Map: 9/10 [00:01<00:09]\n 0%| | 0/3750 [00:00<?, ?it/s]\n 1%| | 37/3750 [00:12<19:58, 3.1it/s]\n{evaluation}"
    )
    assert read_progress(text, PATTERNS) == Progress(), "which of them is the training is not known"
    pattern = r"([1-9]\d*)/3750 \["
    assert read_progress(text, {"step": pattern}) == Progress(37)
    assert first_step(text, pattern) == 37


def test_patterns_of_the_section_replace_some() -> None:
    made = job("command: 'true'\nprogress: {step: 'batch=(\\d+)', loss: null}")
    section = made.sections["progress"]

    def read(*lines: str) -> Progress | None:
        return progress(made, section, [*lines])  # type: ignore[arg-type]

    assert read("epoch 2 batch=17 step 3 loss 1") == Progress(17, 2, first_step=17)
    assert read("batch=\u0661\u0667") is None, "digits of other scripts are not a number"
    assert read("starting", "batch=4 batch=5") == Progress(5, first_step=4)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("{step: '('}", r"progress.step: .*not a regular expression"),
        ("{compiling: 'XLA', step: 'batch=\\d+'}", r"progress.step: .*the pattern has no group around the value"),
    ],
)
def test_a_wrong_pattern_is_an_error(section: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        job(f"command: 'true'\nprogress: {section}")


def test_what_says_nothing_leaves_what_is_known_and_much_of_it_ends_a_compilation() -> None:
    made = job("command: 'true'")
    assert progress(made, None, ["reading"]) is None
    assert progress(made, None, ["compiling", "reading"]) == Progress(compiling=True)
    assert progress(made, None, ["Finished XLA compilation of jit(train) in 12.5 sec"]) == Progress()
    assert progress(made, None, ["reading"] * OTHER_TEXT) == Progress()
    assert progress(made, None, ["step 7 loss 0.5", "compiling"]) == Progress(
        7, loss="0.5", compiling=True, first_step=7
    )


def test_an_attempt_ends_with_how_far_it_came_and_what_the_failure_before_it_cost() -> None:
    script = """
    echo "w$TPUX_WORKER has started"
    if [ $TPUX_WORKER = 1 ]; then echo step 999; exec sleep 0.1; fi
    touch $TPUX_OUTPUT_DIR/checkpoint
    first=$((1 + 30 * TPUX_STAGE))
    for step in $(seq $first $((first + 49))); do echo "step $step loss 0.$step"; done
    if [ $TPUX_STAGE = 0 ]; then exit 1; fi
    """
    config = {
        "job": {"rule": "resume", "max_restarts": {"program": 1}},
        "tpu": {"node_count": 2},
        "command": {"cmd": script, "checkpoint": "checkpoint"},
    }
    run = run_job(config)
    assert (run.state, run.attempts) == ("succeeded", 2), run.why
    ends = [json.loads(json.dumps(event.to_json())) for event in run.events if event.type == "attempt-ended"]
    assert [(end["progress"]["first_step"], end["progress"]["step"]) for end in ends] == [(1, 50), (31, 80)]
    assert [end.get("repeated_steps", 0) for end in ends] == [0, 20]
    assert ends[-1]["progress"]["loss"] == "0.80"
