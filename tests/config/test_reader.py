"""m5ws.toml: one error names all of its problems, with their lines."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.config import reader
from m5ws.config.settings import Settings, StoreSettings
from m5ws.errors import ConfigError
from m5ws.projects import init


def _read(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "m5ws.toml"
    path.write_text(text)
    return reader.read(path)


_RULE = "title = 't'\nadvice = 'a'\nowner = 'user'\nretry = true\n"


_PODS = f"[clusters.a]\nengine = 'kubernetes'\ncpus_per_node = 1\nmemory_mib = 64\nimage = 'a@sha256:{'a' * 64}'\n"
_QUEUE = "[clusters.a]\nengine = 'batch'\nregion = 'r'\nqueue = 'q'\ncpus_per_node = 1\nmemory_mib = 64\n"
_BATCH = f"{_QUEUE}image = 'a@sha256:{'a' * 64}'\n"


def _problem(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        _read(tmp_path, text)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert _read(tmp_path, "") == Settings()


def test_settings_are_read_from_the_file(tmp_path: Path) -> None:
    settings = _read(tmp_path, "[run]\ncommand = ['train.py', '--fast']\nnproc = 4\n[determinism]\nthreads = 2\n")
    assert settings.run.command == ("train.py", "--fast")
    assert (settings.run.nproc, settings.determinism.threads) == (4, 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n# a comment\nstor = 1\n", ("m5ws.toml:3: ", "'stor'", "'store'")),
        ("[store]\nurl = 'a'\nulr = 'b'\n", ("m5ws.toml:3: ", "'store.ulr'", "'url'")),
        ("[run]\n\n[datas]\npaths = []\n", ("m5ws.toml:3: ", "'datas'", "'data'")),
        ("run.nprocs = 2\n", ("m5ws.toml:1: ", "'run.nprocs'", "'nproc'")),
        ("[code]\nxyzzy = 1\n", ("m5ws.toml:2: ", "'code.xyzzy'", "exclude")),
        ("[notify]\nurls = ['slack://a/b/c']\n", ("m5ws.toml:2: ", "'notify.urls'", "${NAME}")),
        ("[notify]\ncommand = ['x']\non = ['stuk']\n", ("m5ws.toml:3: ", "'notify.on'", "stuk")),
        ("[notify]\non = ['failed']\n", ("m5ws.toml:2: ", "'notify.on'", "without urls or command")),
        ("[causes.x]\ntitle = 'x'\n", ("m5ws.toml:1: ", "'causes.x' needs patterns, advice, owner, retry")),
        ("[causes]\nx = 1\n", ("m5ws.toml:2: ", "[causes.x]")),
        (f"[causes.x]\npattern = ['a']\n{_RULE}", ("m5ws.toml:2: ", "'causes.x.pattern'", "'patterns'")),
        (f"[causes.x]\n{_RULE}patterns = ['(']\n", ("m5ws.toml:6: ", "'causes.x.patterns'", "regular expression")),
        (f"[causes.x]\n{_RULE}patterns = []\n", ("m5ws.toml:6: ", "'causes.x.patterns'", "no pattern")),
        (f"[causes.x]\n{_RULE}patterns = ['b', '']\n", ("m5ws.toml:6: ", "'causes.x.patterns'", "an empty line")),
        (f"[causes.unknown]\n{_RULE}patterns = ['a']\n", ("m5ws.toml:1: ", "'unknown' is no name of a class")),
        (f'[causes."a\\n"]\n{_RULE}patterns = ["a"]\n', ("m5ws.toml:1: ", "is no name of a class")),
        (f"[causes.x]\n{_RULE}patterns = ['b*']\n", ("m5ws.toml:6: ", "'b*' matches an empty line")),
        (f"{_QUEUE}image = 'a:latest'\n", ("m5ws.toml:7: ", "'clusters.a.image'", "sha256")),
        (f"{_QUEUE}restarts = 10\n", ("m5ws.toml:1: ", "'clusters.a'", "needs image")),
        (f"{_QUEUE}restarts = 10\n", ("m5ws.toml:7: ", "'clusters.a.restarts'", "9")),
        (f"{_QUEUE}timeout_s = 59\n", ("m5ws.toml:7: ", "'clusters.a.timeout_s'", "60")),
        (f"{_QUEUE}timeout_s = 300\n", ("m5ws.toml:7: ", "'clusters.a'", "above warn_s, which is 300")),
        (f"{_QUEUE}mounts = ['nvme']\n", ("m5ws.toml:7: ", "'clusters.a.mounts'", "^/")),
        (_QUEUE.replace("region", "scratch"), ("m5ws.toml:1: ", "'clusters.a'", "needs region")),
        (f"{_QUEUE}hosts = ['b']\n", ("m5ws.toml:7: ", "'clusters.a.hosts'")),
        (_PODS.replace("image", "#"), ("m5ws.toml:1: ", "'clusters.a'", "needs image")),
        (f"{_PODS}grace_s = 129\n", ("m5ws.toml:1: ", "'clusters'", "20 s longer than 'checkpoint.deadline_s'")),
        (f"{_PODS}[checkpoint]\ndeadline_s = 200\n", ("m5ws.toml:7: ", "'checkpoint.deadline_s'", "grace_s")),
        *(
            (f"{_PODS}{key} = {value}\n", ("m5ws.toml:1: ", "'clusters'", "folder of containers"))
            for folder in ("/nvme/", "nvme", "/a/../b", "/a/./b", "/", "/a$B", "/a:b", "//a", "")
            for key, value in (
                ("scratch", f"'{folder}'"),
                ("mounts", f"['{folder}']"),
                ("claims", f"{{ '{folder}' = 'x' }}"),
            )
        ),
        ("[clusters.a]\nengine = 'k8s'\n", ("m5ws.toml:1: ", "'clusters.a'", '"kubernetes" or "skypilot" or "dstack"')),
        ("[store]\nregion = 'eu-west-1'\n", ("m5ws.toml:2: ", "'store.region'", "'store.url'", "s3://")),
        (
            "[store]\nurl = 's3://team/a'\nsse_kms_key = 'alias/a'\n",
            ("m5ws.toml:3: ", "'store.sse_kms_key'", "'store.sse'", "aws:kms"),
        ),
        ("[store]\nurl = 's3://team/a'\nstall_s = 0.0\n", ("m5ws.toml:3: ", "'store.stall_s'", "> 0")),
        ("[store]\ncache_limit = '50 gigs'\n", ("m5ws.toml:2: ", "'store.cache_limit'", "size")),
        ("[store]\ncache_limit = -1\n", ("m5ws.toml:2: ", "'store.cache_limit'", "size")),
        ("[store]\ncache = 'x'\ncache_limit = 0\n", ("m5ws.toml:2: ", "'store.cache'", "'store.cache_limit'")),
        ("[data]\npaths = ['~/.cache/hf']\n", ("m5ws.toml:2: ", "'data.paths'", "link")),
        ("[run]\nnproc = '2'\n", ("m5ws.toml:2: ", "'run.nproc'", "int", "str")),
        ("[config]\nfiles = [\n  'a.yaml',\n  3,\n]\n", ("m5ws.toml:2: ", "'config.files'", "str", "int")),
        ("store = 'there'\n", ("m5ws.toml:1: ", "'store'", "[store]")),
        ("[run]\ntrainer = 'slurm'\n", ("m5ws.toml:2: ", "'run.trainer'", "'slurm'", "torchrun, deepspeed")),
        ("[run]\ntrainer = ['torchrun']\n", ("m5ws.toml:2: ", "'run.trainer'", "torchrun, deepspeed")),
        ("[run]\nnproc = 0\n", ("m5ws.toml:2: ", "'run.nproc'", ">= 1")),
        ("[run]\ncheckpoint_every = 0\n", ("m5ws.toml:2: ", "'run.checkpoint_every'", ">= 1")),
        ("[data]\npaths = ['/mnt/data']\n", ("m5ws.toml:2: ", "'data.paths'", "inside")),
        ("[data]\npaths = ['a/../../b']\n", ("m5ws.toml:2: ", "'data.paths'", "inside")),
        ("[tokenizer]\nprobe = 'x'\n", ("m5ws.toml:2: ", "'tokenizer.probe'", "'tokenizer.path'")),
        ("[mlflow]\nenabled = false\nexperiment = 'x'\n", ("m5ws.toml:3: ", "'mlflow.experiment'", "'mlflow.enabled'")),
        ("[run\n", ("m5ws.toml: ", "TOML")),
        ("a = 1\na = 2\n", ("line 2,",)),
    ],
)
def test_a_problem_is_named_with_its_line(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    problem = _problem(tmp_path, text)
    assert all(part in problem for part in expected), problem


@pytest.mark.parametrize("cluster", [_BATCH, _PODS])
def test_an_odd_value_of_a_cluster_is_one_error_with_its_key(tmp_path: Path, cluster: str) -> None:
    own = ("timeout_s", "patience_s", "warn_s") if cluster == _BATCH else ("hugepages_mib", "grace_s")
    values = ("-1", "2147483648", "9" * 30, "1.5", "true", "'1'", "[]")
    cases = [(key, value, "int") for key in (*own, "gpus_per_node", "efa", "shm_mib", "restarts") for value in values]
    cases += [("efa", "129", "128")]
    own = ("job_role", "instance_type") if cluster == _BATCH else ("context", "namespace", "service_account")
    texts = ('"a\\nb"', '"\\u0000"', '"a\\u001b[2J"', '"\\u202e"')
    cases += [(key, value, "line break") for key in (*own, "python", "scratch", "cache") for value in texts]
    tags = "tags" if cluster == _BATCH else "labels"
    cases += [(tags, f"{{ {pair} }}", "line break") for pair in ('a = "b\\nc"', '"a\\n" = "b"')]
    for key, value, problem in cases:
        found = _problem(tmp_path, f"{cluster}{key} = {value}\n")
        assert f"'clusters.a.{key}'" in found and problem in found and "\n" not in found
    setup = _read(tmp_path, f'{cluster}setup = ["a\\nb"]\n').clusters["a"].setup
    assert setup == ("a\nb",)


@pytest.mark.parametrize("key", ["shared", "mounts"])
def test_a_folder_of_containers_of_aws_batch_has_one_spelling(tmp_path: Path, key: str) -> None:
    for folder in ("/nvme/", "/a/../b", "/a/./b", "/", "/a$B", "/a:b", "//a"):
        assert "folder of containers" in _problem(tmp_path, f"{_BATCH}{key} = ['{folder}']\n")
    _read(tmp_path, f"{_BATCH}{key} = ['/nvme', '/fsx/team']\n")


@pytest.mark.parametrize("value", ["[]", "['batch']", "{}", "1", "''", "true", "nan", "1979-05-27"])
def test_an_engine_of_another_type_is_an_error(tmp_path: Path, value: str) -> None:
    assert "'clusters.a' needs engine" in _problem(tmp_path, f"[clusters.a]\nengine = {value}\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50 GiB", 50 * 2**30),
        ("1.5TB", 15 * 10**11),
        ("200 MB", 2 * 10**8),
        ("7", 7),
        (7, 7),
        ("0", 0),
        ("8 KiB", 8192),
    ],
)
def test_a_size_is_text_or_a_number_of_bytes(text: str | int, expected: int) -> None:
    assert StoreSettings(cache_limit=text).cache_limit_bytes == expected


def test_all_problems_are_named_in_the_order_of_the_file(tmp_path: Path) -> None:
    lines = _problem(tmp_path, "[run]\nnprox = 1\nsed = 2\n\n[stor]\n").splitlines()
    assert [line.split(": ")[0] for line in lines] == ["m5ws.toml:2", "m5ws.toml:3", "m5ws.toml:5"]


def test_bytes_that_are_not_text_are_an_error_not_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "m5ws.toml").write_bytes(b"name = '\xff'\n")
    with pytest.raises(ConfigError, match="TOML"):
        reader.read(tmp_path / "m5ws.toml")


@given(before=st.lists(st.sampled_from(["", "# x", "b = 1", 'c = """\nd = 2\n"""', "e = [\n 1,\n]"]), unique=True))
def test_the_line_of_a_key_is_the_first_line_of_its_statement(before: list[str]) -> None:
    text = "\n".join([*before, "a = [", "  1,", "]", ""])
    assert reader.line_of(text, ("a",)) == text.splitlines().index("a = [") + 1


def test_the_file_that_init_writes_is_valid_and_shows_every_key_with_its_default(tmp_path: Path) -> None:
    planned = init.plan(tmp_path / 'a "quoted" név')
    text = next(file.data for file in planned.files if file.path == "m5ws.toml").decode()
    assert _read(tmp_path, text) == Settings(name='a "quoted" név')
    for section in msgspec.structs.fields(Settings):
        if section.name in ("name", "extends", "clusters", "causes"):
            continue
        body = text.split(f"[{section.name}]\n")[1].split("\n[")[0]
        for key in msgspec.structs.fields(section.type):
            assert f"# {key.name} = " in body, f"{section.name}.{key.name} is missing"


def test_every_line_that_init_comments_out_is_a_setting_that_is_accepted(tmp_path: Path) -> None:
    planned = init.plan(tmp_path / "w")
    text = next(file.data for file in planned.files if file.path == "m5ws.toml").decode()
    lines = [line.removeprefix("# ") if " = " in line else line for line in text.splitlines()]
    # The keys of an S3 store are errors for a directory.
    settings = _read(tmp_path, "\n".join(lines).replace('url = ".m5ws/store"', 'url = "s3://bucket/prefix"'))
    assert settings.run.command == ("train.py",)
    assert settings.store.sse == "aws:kms"
    shown = {"code", "config", "data", "determinism", "secrets"}
    assert all(getattr(settings, name) == getattr(Settings(), name) for name in shown)


def test_a_pattern_of_a_cause_is_checked_by_the_library_that_searches_it(tmp_path: Path) -> None:
    settings = _read(tmp_path, f"[causes.x]\n{_RULE}patterns = ['\\p{{Lu}}++Error']\n")
    assert settings.causes["x"].patterns == (r"\p{Lu}++Error",)
