"""``ratioscope run``: records the trainers of unchanged programs."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ratioscope.cli.bootstrap import sitecustomize
from ratioscope.cli.main import main

ROOT = Path(__file__).resolve().parents[2]

TRAINING = """
import sys
from pathlib import Path
from tests.support.fake_engine import make_trainer
assert sys.argv[1:] == ["--steps", "2"], sys.argv
trainer = make_trainer(Path("out"))
trainer.train()
print(sorted(key for row in trainer.state.log_history for key in row if key.startswith("ratioscope/"))[:1])
"""


def start(*command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command with the project's sources importable."""
    path = os.pathsep.join(str(ROOT / root) for root in ("tracking", "integrations", "."))
    inherited = os.environ | {"PYTHONPATH": path, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(command, cwd=folder, env=inherited, capture_output=True, text=True, timeout=240)


def ratioscope(*arguments: str) -> tuple[str, ...]:
    """Returns the command line of ``ratioscope``."""
    return (sys.executable, "-m", "ratioscope", *arguments)


def test_program_keeps_its_arguments_and_exit_code(tmp_path: Path) -> None:
    """The program gets all arguments after its name, and keeps the command's exit code, streams and process id."""
    (tmp_path / "program.py").write_text("import os, sys; print(sys.argv[1:], os.getpid()); sys.exit(7)")
    process = subprocess.Popen(
        ratioscope("run", "--detail", "full", "program.py", "--detail", "--", "-m", "x"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = process.communicate(timeout=60)
    assert (out.strip(), process.returncode) == (f"['--detail', '--', '-m', 'x'] {process.pid}", 7)


@pytest.mark.slow
def test_modules_and_commands_are_started_as_python_and_the_shell_would(tmp_path: Path) -> None:
    """``-m`` takes a module, a name on the PATH is started directly, and both find the modules of their folder."""
    (tmp_path / "here.py").write_text("import sys; print('module', sys.argv[1:])")
    assert start(*ratioscope("run", "-m", "here", "a"), folder=tmp_path).stdout == "module ['a']\n"
    command = ratioscope("run", Path(sys.executable).name, "-c", "import here")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    assert start(*command, folder=tmp_path, PATH=path).stdout == "module []\n"


@pytest.mark.slow
def test_system_sitecustomize_still_runs(tmp_path: Path) -> None:
    """The system's own sitecustomize runs although the command's one shadows it."""
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.theirs = 'ran'")
    (tmp_path / "program.py").write_text("import sitecustomize; print(theirs, sitecustomize.__file__)")
    path = os.pathsep.join([str(ROOT / "tracking"), str(tmp_path)])
    done = start(*ratioscope("run", "program.py"), folder=tmp_path, PYTHONPATH=path)
    assert done.stdout == f"ran {tmp_path / 'sitecustomize.py'}\n", done.stderr


def test_the_function_is_called_after_the_module_alone(tmp_path: Path) -> None:
    """The hook runs after the complete import of the awaited module, and is not even imported before."""
    (tmp_path / "awaited.py").write_text("loaded = True")
    (tmp_path / "hook.py").write_text("def call(module, options): print('hook', module.loaded, options)")
    order = {"after": {"awaited": "hook:call"}, "options": {"detail": "full"}}
    folders = [str(Path(sitecustomize.__file__).parent), str(tmp_path)]
    environment = {"PYTHONPATH": os.pathsep.join(folders), sitecustomize.VARIABLE: json.dumps(order)}
    code = "import inspect, sys; print('hook' in sys.modules); import awaited; print(inspect.getsource(awaited))"
    done = start(sys.executable, "-c", code, folder=tmp_path, **environment)
    assert done.stdout == "False\nhook True {'detail': 'full'}\nloaded = True\n\n", done.stderr


def test_a_hook_that_fails_warns_and_the_program_goes_on(tmp_path: Path) -> None:
    """A failing hook gives one warning; the import succeeds."""
    (tmp_path / "awaited.py").write_text("")
    order = {"after": {"awaited": "no_such_module:call"}, "options": {}}
    folders = [str(Path(sitecustomize.__file__).parent), str(tmp_path)]
    environment = {"PYTHONPATH": os.pathsep.join(folders), sitecustomize.VARIABLE: json.dumps(order)}
    done = start(sys.executable, "-c", "import awaited; print('on')", folder=tmp_path, **environment)
    assert done.stdout == "on\n"
    assert "could not be attached" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "no-such-thing"], "expected a Python file"),
        (["run", "--report-to", "wanbd", "-m", "this"], "Did you mean 'wandb'"),
        (["run"], "required: program"),
    ],
)
def test_wrong_program_or_tracker_is_reported_at_once(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong program or tracker is an error before anything is started."""
    try:
        code = main(arguments)
    except SystemExit as error:
        code = error.code  # type: ignore[assignment]
    assert code in (1, 2)
    assert message in capsys.readouterr().err


@pytest.mark.trl
@pytest.mark.parametrize("launcher", ["python", "torchrun", "accelerate"])
def test_unchanged_training_is_recorded(launcher: str, tmp_path: Path) -> None:
    """The trainers of a script are recorded under every launcher: scalars in its log, records in the journal."""
    from ratioscope.journal.reader import JournalReader

    (tmp_path / "train.py").write_text(TRAINING)
    program = ("train.py", "--steps", "2")
    if launcher == "torchrun":
        program = ("-m", "torch.distributed.run", "--nproc_per_node", "2", *program)
    command = ratioscope("run", *program)
    if launcher == "accelerate":
        launch = (sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1")
        command = (*launch, "-m", "ratioscope", "run", *program)
    done = start(*command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "['ratioscope/" in done.stdout
    with JournalReader(tmp_path / "out") as journal:
        assert [record.step for record in journal.records()] == [1, 2]
        assert {record.world_size for record in journal.records()} == {2 if launcher == "torchrun" else 1}


FAKE_ENGINE = """
import sys
sys.path.append({root!r})
from ratioscope.cli.bootstrap.sitecustomize import _Waiting
def fake(module, options):
    from tests.support.fake_engine import FakeEngine
    module.VLLMGeneration, module.is_vllm_available = FakeEngine, lambda *_, **__: True
sys.modules["fake_engine_hook"] = sys.modules[__name__]
sys.meta_path.insert(0, _Waiting({{"trl.trainer.grpo_trainer": "fake_engine_hook:fake"}}, {{}}))
"""


@pytest.mark.trl
def test_command_line_of_trl_is_recorded_through_its_launcher(tmp_path: Path) -> None:
    """A trainer is recorded through ``trl grpo``, which starts accelerate, which starts a script."""
    from ratioscope.journal.reader import JournalReader
    from tests.support.drive_grpo import load_example

    (tmp_path / "sitecustomize.py").write_text(FAKE_ENGINE.format(root=str(ROOT)))
    load_example().make_tiny_model(tmp_path / "model", seed=0)
    (tmp_path / "data").mkdir()
    rows = [json.dumps({"prompt": f"t{n % 7} t{n % 5}"}) for n in range(32)]
    (tmp_path / "data" / "train.jsonl").write_text("\n".join(rows))
    settings = {
        "model_name_or_path": tmp_path / "model",
        "dataset_name": tmp_path / "data",
        "reward_funcs": "tests.support.fake_engine.length_reward",
        "output_dir": tmp_path / "out",
        "report_to": "none",
        "use_vllm": True,
        "vllm_mode": "colocate",
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "max_steps": 2,
        "logging_steps": 1,
        "num_generations": 4,
        "max_completion_length": 12,
    }
    arguments = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    scripts = str(Path(sys.executable).parent)
    path = os.pathsep.join([str(ROOT / "tracking"), str(ROOT / "integrations"), str(tmp_path)])
    environment = {"PYTHONPATH": path, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    done = start(*ratioscope("run", "trl", "grpo", *arguments), folder=tmp_path, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    with JournalReader(tmp_path / "out") as journal:
        assert [record.step for record in journal.records()] == [1, 2]


def test_start_up_file_is_read_by_old_pythons() -> None:
    """The start-up file has the syntax of Python 3.6, and no annotation that such a Python would evaluate."""
    source = Path(sitecustomize.__file__).read_text()
    tree = ast.parse(source, feature_version=(3, 6))
    nodes = [*ast.walk(tree)]
    assert "__future__" not in {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    evaluated = [node.annotation for node in nodes if isinstance(node, ast.arg | ast.AnnAssign)]
    evaluated += [node.returns for node in nodes if isinstance(node, ast.FunctionDef)]
    assert all(part is None or isinstance(part, ast.Constant | ast.Name) for part in evaluated)
