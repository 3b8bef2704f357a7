"""Root folders of machines: /sys and /dev with EFA devices, without the devices' driver, or without EFA."""

from pathlib import Path


def make_machine(root: Path, *, devices: int = 4, in_dev: bool = True) -> Path:
    """Make the root folder of a machine. `devices`: EFA devices in /sys; `in_dev`: they are in /dev/infiniband too."""
    for number in range(devices):
        folder = root / f"sys/bus/pci/devices/0000:{number:02x}:06.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x1d0f\n")
        (folder / "device").write_text("0xefa2\n")
        if in_dev:
            (root / "dev/infiniband").mkdir(parents=True, exist_ok=True)
            (root / f"dev/infiniband/uverbs{number}").touch()
    return root
