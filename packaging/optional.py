"""Files of the packages beside those of everybody: nvidia-smi under its own name, the guest driver's source, Kubernetes."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Of the guest driver's folder: what is compiled, and what says how.
DRIVER = ("*.c", "*.h", "Kbuild", "Makefile", "dkms.conf")
UDEV = "99-aviary.rules"


def copy(source, target, mode=0o644):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def smi(stage):
    copy(ROOT / "packaging/aviary-smi", stage / "aviary-smi/usr/bin/aviary-smi", 0o755)


def vm(stage, version):
    """Where DKMS looks for it. Only root and a group may use the device."""
    folder, driver = stage / "aviary-vm/usr/src" / f"aviary-{version}", ROOT / "guest-driver/linux"
    for pattern in DRIVER:
        for path in driver.glob(pattern):
            copy(path, folder / path.name)
    settings = (folder / "dkms.conf").read_text(encoding="utf-8")
    if f'PACKAGE_VERSION="{version}"' not in settings:
        raise SystemExit(f"dist: {driver / 'dkms.conf'} is not about version {version}")
    copy(driver / UDEV, stage / "aviary-vm/lib/udev/rules.d" / UDEV)
    copy(driver / "README.md", stage / "aviary-vm/usr/share/doc/aviary-vm/README.md")


def kubernetes(stage, plugin):
    copy(plugin, stage / "aviary-kubernetes/usr/sbin/aviary-kubelet-plugin", 0o755)
    for path in sorted((ROOT / "kubernetes/deploy").rglob("*.yaml")):
        copy(path, stage / "aviary-kubernetes/usr/share/aviary-kubernetes" / path.relative_to(ROOT / "kubernetes/deploy"))
    copy(ROOT / "docs/kubernetes.md", stage / "aviary-kubernetes/usr/share/doc/aviary-kubernetes/kubernetes.md")


def units(debian):
    """The unit of a further node on one machine: that of the first one, with names of its own."""
    text = (debian / "aviary.service").read_text(encoding="utf-8")
    for one, other in (
        ("# A node for this machine's tenants. It is neither enabled nor started by a package: systemctl enable --now aviary",
         "# A further node, with a configuration file of its own, say for another vendor's devices: systemctl enable --now aviary@NAME"),
        ("Description=Aviary node:", "Description=Aviary node %i:"),
        ('# In the file: listen = "unix:/run/aviary/node.sock", mode, limits and tenants (docs/tenants.md).',
         "# In the file: mode, limits and tenants (docs/tenants.md), and api_server_users that no other node has."),
        ("ExecStart=/usr/bin/aviary serve --config /etc/aviary/node.toml",
         "ExecStart=/usr/bin/aviary serve --config /etc/aviary/%i.toml --listen unix:/run/aviary-%i/node.sock --grants /var/lib/aviary-%i/grants"),
        ("--server unix:/run/aviary/node.sock", "--server unix:/run/aviary-%i/node.sock"),
        ("RuntimeDirectory=aviary\n", "RuntimeDirectory=aviary-%i\n"), ("StateDirectory=aviary\n", "StateDirectory=aviary-%i\n"),
    ):
        if one not in text:
            raise SystemExit(f"dist: aviary.service has not: {one}")
        text = text.replace(one, other)
    (debian / "aviary@.service").write_text(text, encoding="utf-8")
