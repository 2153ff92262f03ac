"""Arguments of resumed attempts that would not reach the program are errors when the job is created."""

from __future__ import annotations

import pytest

from tpux.config.script import places_arguments

ACCEPTED = [
    "python train.py",
    "cd src && python train.py",
    "export A=1; python train.py",
    "module load x\npython train.py\n\n",
    "python train.py > log 2>&1",
    "python train.py &> log",
    "x=$(ls | wc -l)\npython train.py $x",
    "python -c 'a | b'",
    'echo "a # b"',
    "echo $# ${#x}",
    "python train.py \\\n  --steps 1",
    "python prepare.py # once\npython train.py",
    "cat > f <<EOF\nit's\nEOF\npython train.py",
    "for i in 1; do a; done\npython train.py",
    "case $x in a) b ;; esac\npython train.py",
    'python "${x:-it\'s}"',
    'python "$(echo "x | $(y "z" | w)")" --a',
    "x=(a b)\npython $x",
    "echo it's",  # an open quote: bash reports it
    "python train.py $TPUX_RESUME_ARGS | tee log",
    "yes |\n  head -1\npython train.py",
    "cd code &&\n  python train.py",
    "ARGS=(\n  --lr 1 # don't (change)\n)\npython train.py ${ARGS[@]} $((16#ff)) $(echo a#b)",
    "for i in 1; do python train.py ${TPUX_RESUME_ARGS}; done",
    "cat > f <<EOF\n# $TPUX_RESUME_ARGS\nEOF\npython train.py < f &",
    "echo '# $TPUX_RESUME_ARGS' | sh",
    "[[ -e data ]] && python train.py",
    "python wait.py",
    "exits a",
    "echo a",
    "bash -c 'python train.py \"$@\"' bash",
    "bash -c 'python train.py $TPUX_RESUME_ARGS'",
    "bash train.sh -c fast",
    "A=1 python train.py",
    "A=$(nproc) B='x y' C+=(1 2) python train.py",
    "set -ex\nexec python train.py",
    "time -p python train.py",
    "> log python train.py",
    "command -p python train.py 2>&1",
    "A=1 \\\n  python train.py",
    "python set.py",
    "eval python train.py",
    "source train.sh",
    "sleep 1",
    "python train.py < <(cat list)",
    "x=$(echo hi); python $x",
]
REFUSED = [
    ("python train.py 2>&1 | tee log", "a pipe"),
    ("python train.py |& tee log", "a pipe"),
    ("python train.py \\\n | tee log", "a pipe"),
    ("python train.py |\n  tee log", "a pipe"),
    ("python train.py | # both\n\n  tee log", "a pipe"),
    ("cat <<END |\n  a |\nEND\n  tee log", "a pipe"),
    ("python train.py ||\n  python other.py", "an alternative"),
    ("ARGS=(\n  --lr 1 # don't (change)\n)\npython train.py ${ARGS[@]} | tee log", "a pipe"),
    ("python train.py &", "'&'"),
    ("python train.py;", "';'"),
    ("python train.py || exit 1", "an alternative"),
    ("python train.py # the training", "a comment"),
    ("python train.py\n# the end", "a comment"),
    ("for i in 1 2; do python train.py; done", "'done'"),
    ("while read x; do python $x; done < list", "'done'"),
    ("if true; then python train.py; fi", "'fi'"),
    ("case $x in a) python train.py;; esac", "'esac'"),
    ("( python train.py )", "')'"),
    ("{ python train.py; } > log", "'}'"),
    ("bash <<EOF\nit's\nEOF", "a here-document"),
    ("python train.py \\", "a backslash"),
    ("python train.py & wait", "'wait'"),
    ("python train.py &\nwait $!", "'wait'"),
    ("python train.py\nexit", "'exit'"),
    ("python train.py; exit $?", "'exit'"),
    ("python train.py; (exit 3) || return 3", "an alternative"),
    ("python train.py\n[[ -e done && -e model ]]", "a test"),
    ("python train.py && ! [ -e failed ]", "a test"),
    ("python train.py && test -e model", "'test'"),
    ("python train.py; echo $?", "'echo'"),
    ("python train.py && true", "'true'"),
    ("python train.py\ncd ..", "'cd'"),
    ("nohup python train.py & disown", "'disown'"),
    ("python train.py\nX=1", "an assignment"),
    ("python train.py\nx=$(echo hi)", "an assignment"),
    ("python train.py\nx=$(echo $(a | b) ')')", "an assignment"),
    ("python train.py; X='a b' Y=`c d`", "an assignment"),
    ('python train.py\nX="a b"', "an assignment"),
    ("python train.py\nfiles=(a b)", "an assignment"),
    ("python train.py\nfiles[0]+=$((1 + 2))", "an assignment"),
    ("set -x\npython train.py\nset +x", "'set'"),
    ("python train.py\nA=1 set +x", "'set'"),
    ("python train.py\n! wait>log", "'wait'"),
    ("python train.py\nshopt -u nullglob", "'shopt'"),
    ("python train.py\ndeclare -a x=(1 2)", "'declare'"),
    ("python train.py\nulimit -n 4096", "'ulimit'"),
    ("python train.py\nread -r x < log", "'read'"),
    ("python train.py\nkill $!", "'kill'"),
    ("python train.py\nbuiltin cd ..", "'cd'"),
    ("command -v python", "'command'"),
    ("python train.py\nexec > log", "'exec'"),
    ("python train.py\n> done", "a redirection"),
    ("python train.py\n((x += 1))", "')'"),
    ("python train.py\nsleep 60", "'sleep'"),
    ("python train.py\ngsutil cp -r out gs://bucket", "'gsutil'"),
    ("python train.py; tar -czf out.tgz out", "'tar'"),
    ("python train.py && touch $TPUX_OUTPUT_DIR/done", "'touch'"),
    ("A=1 bash -c 'x'; A=1 [ -e model ]", "a test"),
    ("# add $TPUX_RESUME_ARGS here\npython train.py &", "'&'"),
    ("python train.py | tee log  # ${TPUX_RESUME_ARGS}", "a comment"),
]


def config(script: str, key: str = "resume_args") -> str:
    import json

    return f"command:\n  cmd: {json.dumps(script)}\n  {key}: --load=${{job.previous_output_dir}}\n"


@pytest.mark.parametrize("script", ACCEPTED)
def test_arguments_that_reach_the_program(read, script):
    read(config(script))


@pytest.mark.parametrize(("script", "end"), REFUSED)
def test_arguments_that_would_be_lost(problems, script, end):
    [problem] = problems(config(script))
    assert ":3:16: command.resume_args would be appended to command.cmd" in problem
    assert f"the script ends in {end}" in problem
    assert "write $TPUX_RESUME_ARGS in the script" in problem


def test_the_script_that_is_resumed_is_the_one_that_counts(read, problems):
    read(config("python train.py | tee log") + "  resume_cmd: python resume.py\n")
    [problem] = problems(config("python train.py") + "  resume_cmd: python resume.py &\n")
    assert "appended to command.resume_cmd, but the script ends in '&'" in problem
    assert len(problems(config("a &", "stage_args") + "  resume_cmd: b &\n")) == 2


def test_a_misspelled_variable_of_the_job_is_an_error(problems):
    [problem] = problems("command: {cmd: 'python train.py --load=${job.previous_outputdir}'}\n")
    assert "unknown variable ${job.previous_outputdir} | did you mean ${job.previous_output_dir}?" in problem


def test_a_comment_does_not_place_the_arguments():
    assert not places_arguments("# add $TPUX_RESUME_ARGS\npython train.py")
    assert places_arguments("# flags\npython train.py $TPUX_RESUME_ARGS")
    assert places_arguments("echo it's $TPUX_RESUME_ARGS"), "with an open quote it is not known what is a comment"


@pytest.mark.parametrize(
    ("script", "shell"),
    [
        ("bash -c 'python a.py'", "bash"),
        ("cd b && /bin/sh -ec 'python a.py'", "sh"),
        ("A='1 2' exec bash -c 'python a.py'", "bash"),
    ],
)
def test_a_shells_own_script_reads_no_arguments(problems, script, shell):
    [problem] = problems(config(script))
    assert f"the script of `{shell} -c` does not read them" in problem
