"""The observer on this machine, and on files of other machines from their documentation."""

import json
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import blake3
import pytest

from m5ws.environment.observe import hardware, native_libraries, variables
from m5ws.environment.observe.machine import Machine
from m5ws.errors import ConfigError

DIGEST = "sha256:" + "0123456789abcdef" * 4


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def observer(tmp_path: Path, **options: object) -> Machine:
    return Machine(root=tmp_path, **options)  # type: ignore[arg-type]


# --- this machine ----------------------------------------------------------------------------------------------


def test_observation_records_the_facts_of_this_machine(tmp_path: Path) -> None:
    facts = observer(tmp_path).observe({}).facts
    assert facts["python"] == platform.python_version()
    assert facts["kernel"] == os.uname().release
    assert facts["cpu.count"] == str(len(os.sched_getaffinity(0)))
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    if model:
        assert (facts["cpu.model"] or "").startswith(model[1])
        assert re.fullmatch("[0-9a-f]{16}", facts["cpu.flags"] or "")
    assert facts["glibc"] == os.confstr("CS_GNU_LIBC_VERSION")


def test_absent_facts_are_recorded_as_absent(tmp_path: Path) -> None:
    facts = observer(tmp_path).observe({}).facts
    named = ("gpu.model", "gpu.count", "gpu.driver", "libfabric", "aws-ofi-nccl", "efa.driver", "nccl.installed")
    assert set(named) | {"container.image", "aws.ami", "aws.instance_type"} <= facts.keys()


def test_observed_distributions_match_the_interpreter(tmp_path: Path) -> None:
    versions = observer(tmp_path).observe({}).distributions
    assert versions["msgspec"] == metadata.version("msgspec")
    assert all(name == name.lower() and "_" not in name for name in versions)


def test_observing_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from m5ws.environment.observe.machine import Machine;"
        f"Machine(root=Path({str(tmp_path)!r})).observe({{}});"
        "print([name for name in ('torch', 'numpy', 'deepspeed', 'mlflow', 'dvc') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- environment variables -----------------------------------------------------------------------------------------


def test_only_allowed_variables_are_recorded(tmp_path: Path) -> None:
    environment = {"NCCL_ALGO": "Ring", "MY_SETTING": "a", "AWS_SECRET_ACCESS_KEY": "hunter2", "OTHER": "hunter2"}
    machine = observer(tmp_path, variable_names=("MY_SETTING", "UNSET_SETTING"), base={})
    observed = machine.observe(environment)
    assert observed.facts["variable.NCCL_ALGO"] == "Ring"
    assert observed.facts["variable.MY_SETTING"] == "a"
    assert observed.facts["variable.UNSET_SETTING"] is None
    assert "hunter2" not in repr(observed)


def test_credentials_in_a_recorded_url_are_stripped() -> None:
    facts = variables.facts(variables.allowed(("MY_INDEX",)), {"MY_INDEX": "https://me:hunter2@host/simple"})
    assert facts["variable.MY_INDEX"] == "https://host/simple"
    named = variables.facts(variables.allowed(("MY_INDEX",)), {"MY_INDEX": "https://me@here.org:hunter2@host/simple"})
    assert named["variable.MY_INDEX"] == "https://host/simple"


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "*", "api_key"])
def test_a_variable_that_holds_a_secret_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="secret"):
        observer(tmp_path, variable_names=(name,))


def test_a_pattern_does_not_record_a_secret() -> None:
    facts = variables.facts(variables.allowed(("MINE_*",)), {"MINE_A": "1", "MINE_TOKEN": "hunter2"})
    assert facts["variable.MINE_A"] == "1"
    assert "variable.MINE_TOKEN" not in facts


# --- other machines, by the files they have -------------------------------------------------------------------------


def test_the_nvidia_driver_and_gpus_are_read_from_proc(tmp_path: Path) -> None:
    version = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build  (dvs-builder)  Wed\n"
        "GCC version:  gcc version 13.3.0\n"
    )
    write(tmp_path / "proc/driver/nvidia/version", version)
    for slot in ("0000:53:00.0", "0000:64:00.0"):
        write(tmp_path / f"proc/driver/nvidia/gpus/{slot}/information", "Model: \t\t NVIDIA H200\nIRQ:   \t\t 31\n")
    assert hardware.gpu(tmp_path) == {"gpu.driver": "580.82.07", "gpu.model": "NVIDIA H200", "gpu.count": "2"}


def test_efa_libfabric_and_nccl_plugin_versions_are_read_from_amazon_folders(tmp_path: Path) -> None:
    write(tmp_path / "sys/module/efa/version", "2.13.0g\n")
    write(tmp_path / "opt/amazon/efa_installed_packages", "# EFA installer version: 1.38.0\n# Debug packages: no\n")
    library = write(tmp_path / "opt/amazon/efa/lib/libfabric.so.1.27.0", b"\x7fELF")
    library.with_name("libfabric.so.1").symlink_to(library.name)
    write(tmp_path / "opt/amazon/efa/lib/pkgconfig/libfabric.pc", "Name: libfabric\nVersion: 1.22.0amzn4.0\n")
    plugin = b"\x7fELF\0%s\0Initializing aws-ofi-nccl 1.13.2-aws\0"
    write(tmp_path / "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so", plugin)
    facts = native_libraries.network({}, tmp_path)
    assert facts["efa.driver"] == "2.13.0g"
    assert facts["efa.installer"] == "1.38.0"
    assert facts["libfabric"] == "1.22.0amzn4.0"
    assert facts["aws-ofi-nccl"] == "1.13.2-aws"


def test_the_loader_path_comes_before_amazons_folders(tmp_path: Path) -> None:
    write(tmp_path / "opt/amazon/ofi-nccl/lib/libnccl-net.so", b"Initializing aws-ofi-nccl 1.13.2-aws\0")
    write(tmp_path / "mine/libnccl-net.so", b"Initializing aws-ofi-nccl git-6e504db\0")
    facts = native_libraries.network({"LD_LIBRARY_PATH": str(tmp_path / "mine")}, tmp_path)
    assert facts["aws-ofi-nccl"] == "git-6e504db"


def test_a_plugin_without_version_is_identified_by_its_bytes(tmp_path: Path) -> None:
    plugin = write(tmp_path / "opt/aws-ofi-nccl/lib/libnccl-net-ofi.so", b"\x7fELF stripped")
    first = native_libraries.network({}, tmp_path)["aws-ofi-nccl"]
    assert (first or "").startswith("libnccl-net-ofi.so ")
    plugin.write_bytes(b"\x7fELF stripped too")
    assert native_libraries.network({}, tmp_path)["aws-ofi-nccl"] != first


def test_the_ami_and_instance_type_are_read_from_cloud_init(tmp_path: Path) -> None:
    data = {"ds": {"meta_data": {"ami-id": "ami-0abc", "instance-type": "p5.48xlarge", "network": {"x": 1}}}}
    write(tmp_path / "run/cloud-init/instance-data.json", json.dumps(data))
    assert hardware.aws(tmp_path) == {"aws.ami": "ami-0abc", "aws.instance_type": "p5.48xlarge"}


@pytest.mark.parametrize(("vendor", "expected"), [("Amazon EC2", "p4d.24xlarge"), ("Dell Inc.", None)])
def test_the_firmware_names_the_instance_type_on_ec2_alone(tmp_path: Path, vendor: str, expected: str | None) -> None:
    write(tmp_path / "sys/class/dmi/id/sys_vendor", f"{vendor}\n")
    write(tmp_path / "sys/class/dmi/id/product_name", "p4d.24xlarge\n")
    assert hardware.aws(tmp_path) == {"aws.ami": None, "aws.instance_type": expected}


@pytest.mark.parametrize("data", ["", "{", "[]", '{"ds": []}', '{"ds": {"meta_data": 1}}'])
def test_malformed_instance_data_is_no_error(tmp_path: Path, data: str) -> None:
    write(tmp_path / "run/cloud-init/instance-data.json", data)
    assert hardware.aws(tmp_path) == {"aws.ami": None, "aws.instance_type": None}


def test_the_installed_nccl_version_comes_from_its_distribution_or_library(tmp_path: Path) -> None:
    assert native_libraries.nccl({"nvidia-nccl-cu13": "2.28.9"}, {}, tmp_path) == "2.28.9 (nvidia-nccl-cu13)"
    assert native_libraries.nccl({}, {}, tmp_path) is None
    library = write(tmp_path / "lib/libnccl.so.2.26.2", b"\x7fELF")
    library.with_name("libnccl.so.2").symlink_to(library.name)
    assert native_libraries.nccl({}, {"LD_LIBRARY_PATH": str(tmp_path / "lib")}, tmp_path) == "2.26.2"


def test_an_arm_processor_is_identified_by_its_numbers(tmp_path: Path) -> None:
    first = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\nCPU revision\t: 1\n"
    text = f"{first}\n{first.replace(': 0', ': 1')}"
    write(tmp_path / "proc/cpuinfo", text)
    facts = hardware.cpu(tmp_path)
    assert facts["cpu.model"] == "CPU implementer 0x41, CPU part 0xd40, CPU revision 1"
    assert facts["cpu.flags"] == blake3.blake3(b"asimd fp sve").hexdigest()[:16]


# --- the declared environment --------------------------------------------------------------------------------------


def test_lock_files_are_pinned_by_digest(tmp_path: Path) -> None:
    write(tmp_path / "requirements.txt", "torch==2.13.0\n")
    write(tmp_path / "envs/uv.lock", "version = 1\n")
    names = ("constraints.txt", "requirements.txt", "envs/uv.lock")
    declared = Machine(root=tmp_path).declare(tmp_path, names, f"train@{DIGEST}")
    assert declared.locks == {
        "requirements.txt": blake3.blake3(b"torch==2.13.0\n").hexdigest(),
        "envs/uv.lock": blake3.blake3(b"version = 1\n").hexdigest(),
    }
    assert declared.image == f"train@{DIGEST}"


@pytest.mark.parametrize(
    "image", ["train", "train:1.0", f"train@{DIGEST[:-1]}", f"user:pass@host/train@{DIGEST}", f"train@{DIGEST} "]
)
def test_an_image_without_digest_is_refused(tmp_path: Path, image: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Machine(root=tmp_path).declare(tmp_path, (), image)
    assert "by digest" in caught.value.hint


@pytest.mark.parametrize("name", ["../lock", "/etc/hostname", "linked"])
def test_a_lock_file_outside_the_workspace_is_refused(tmp_path: Path, name: str) -> None:
    root = tmp_path / "workspace"
    root.mkdir()
    (root / "linked").symlink_to("/etc/hostname")
    with pytest.raises(ConfigError, match=re.escape(name)):
        Machine(root=root).declare(root, (name,), None)
