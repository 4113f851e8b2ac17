"""The command line takes anything and ends with a known code and one sentence."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvviz.cli import COMMANDS, main
from kvviz.errors import ModelError

SOME = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORDS = ["-1", "0", "1e999", "nan", "50%", "snapkv:window=x", "9" * 20, "/", "../..", ",", ":", "~"]
TEXT = st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00")
VALUES = st.text(TEXT, max_size=8) | st.sampled_from(WORDS)
NAMES = (
    "methods budgets model dtype device max-new-tokens protocol seed expected temperature top-p evict-every "
    "json out save nonsense question quiet"
)
FLAGS = st.sampled_from([f"--{name}" for name in NAMES.split()])


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "a.txt"
    path.write_text("The code is 58213.")
    return path


@SOME
@given(
    command=st.sampled_from(["compare", "causes", "ablate"]),
    flags=st.lists(st.tuples(FLAGS, VALUES).map(list) | FLAGS.map(lambda flag: [flag]), max_size=4),
)
def test_any_arguments(command, flags, document, monkeypatch, capsys, tmp_path):
    def none(*args, **options):
        raise ModelError("No model is loaded here.")

    monkeypatch.setattr("kvviz.models.load_model", none)
    monkeypatch.setattr("kvviz.load_model", none, raising=False)
    monkeypatch.chdir(tmp_path)
    words = [
        command,
        "--document",
        str(document),
        "--question",
        "Code?",
        *(w for flag in flags for w in flag),
    ]
    try:
        code = main(words)
    except SystemExit as ended:  # argparse, and --help
        code = ended.code
    said = capsys.readouterr().err
    assert code in (0, 2), (words, said)
    assert "Traceback" not in said


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(
        st.one_of(st.sampled_from([c for c in COMMANDS if c not in ("serve", "bench")]), VALUES), max_size=3
    )
)
def test_any_words(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kvviz.models.load_model", lambda *a, **k: (_ for _ in ()).throw(ModelError("None.")))
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    assert code in (0, 2), words
    assert "Traceback" not in capsys.readouterr().err
