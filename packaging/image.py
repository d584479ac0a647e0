#!/usr/bin/env python3
"""Makes an OCI image archive of a folder, without a base image or a registry: image.py FOLDER NAME:TAG ARCHIVE [WORD...]

`ctr -n k8s.io images import ARCHIVE` reads it. WORD... is the image's entrypoint. The same folder gives the same bytes.
"""

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile

EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def plain(member, seconds):
    member.mtime, member.uid, member.gid, member.uname, member.gname = seconds, 0, 0, "", ""
    return member


def layer(folder, seconds):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for top, folders, files in os.walk(folder):
            folders.sort()
            for name in sorted(folders + files):
                path = os.path.join(top, name)
                if name in folders and not os.path.islink(path) or name in files or os.path.islink(path):
                    tar.add(path, os.path.relpath(path, folder), recursive=False, filter=lambda member: plain(member, seconds))
    return raw.getvalue()


def encode(value):
    return json.dumps(value, sort_keys=True).encode()


def pack(folder, name, archive, *entrypoint, seconds=EPOCH, **config):
    """`config`: further settings of the image, such as Labels and User."""
    blobs, tar = {}, layer(folder, seconds)

    def blob(data, media, **more):
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": media, "digest": "sha256:" + digest, "size": len(data), **more}

    packed = blob(gzip.compress(tar, 6, mtime=0), "application/vnd.oci.image.layer.v1.tar+gzip")
    config = {
        "architecture": "amd64", "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], **config},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(tar).hexdigest()]},
    }
    configured = blob(encode(config), "application/vnd.oci.image.config.v1+json")
    media = "application/vnd.oci.image.manifest.v1+json"
    manifest = {"schemaVersion": 2, "mediaType": media, "config": configured, "layers": [packed]}
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rsplit(":", 1)[1]}
    listed = blob(encode(manifest), media, annotations=names)
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [listed]}
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as out:
        parts = {"oci-layout": encode({"imageLayoutVersion": "1.0.0"}), "index.json": encode(index)}
        parts.update({"blobs/sha256/" + digest: data for digest, data in sorted(blobs.items())})
        for path, data in parts.items():
            member = plain(tarfile.TarInfo(path), seconds)
            member.size, member.mode = len(data), 0o644
            out.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    pack(*sys.argv[1:])
