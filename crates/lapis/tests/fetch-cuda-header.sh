#!/usr/bin/env bash
# Unpacks NVIDIA's headers (PyPI: nvidia-cuda-runtime) into target/cache/cuda-headers for the tests of Figure 4.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
to=$root/target/cache/cuda-headers
[ -f "$to/cuda.h" ] && exit 0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m pip download --quiet --no-deps --only-binary :all: --platform manylinux2014_x86_64 \
    --dest "$scratch" nvidia-cuda-runtime==13.0.96
python3 - "$scratch" "$to.new" <<'PYTHON'
import glob, os, sys, zipfile
scratch, to = sys.argv[1:]
os.makedirs(to, exist_ok=True)
(wheel,) = glob.glob(os.path.join(scratch, "*.whl"))
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        inside = name.split("/include/", 1)
        if len(inside) == 2 and inside[1]:
            path = os.path.join(to, inside[1])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(archive.read(name))
PYTHON
# Complete or not there at all: another run may look meanwhile.
rm -rf "$to"
mv "$to.new" "$to"
