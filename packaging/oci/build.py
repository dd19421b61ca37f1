#!/usr/bin/env python3
"""Builds an OCI image from a roci binary with nothing but Python: no daemon, no root, no base image from a registry.

    packaging/oci/build.py target/release/roci roci-image.tar
    podman load -i roci-image.tar

The image has one layer: the binary, the shared libraries it needs (none for a static build), CA certificates and a user
without rights (65532). It is written as an OCI layout in a tar file, and every part of it is a function of its inputs, so
the same binary gives the same digest.
"""

import argparse
import gzip
import hashlib
import io
import json
import pathlib
import platform
import re
import subprocess
import tarfile

USER = 65532
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CERTIFICATES = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"]


def libraries(binary: pathlib.Path) -> list[pathlib.Path]:
    """Shared libraries and the loader, as ldd names them; none for a static binary."""
    run = subprocess.run(["ldd", str(binary)], capture_output=True, text=True)
    if run.returncode != 0:
        return []
    return sorted({pathlib.Path(path) for path in re.findall(r"(/\S+) \(0x", run.stdout)})


def layer(binary: pathlib.Path) -> bytes:
    """The root file system as a tar file, uncompressed."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        made: set[str] = set()

        def folder(path: str, mode: int = 0o755, owner: int = 0) -> None:
            parent = str(pathlib.PurePosixPath(path).parent)
            if parent not in (".", "/"):
                folder(parent)
            if path in made:
                return
            made.add(path)
            info = tarfile.TarInfo(path)
            info.type, info.mode, info.uid, info.gid = tarfile.DIRTYPE, mode, owner, owner
            tar.addfile(info)

        def file(path: str, content: bytes, mode: int = 0o644) -> None:
            folder(str(pathlib.PurePosixPath(path).parent))
            info = tarfile.TarInfo(path)
            info.mode, info.size = mode, len(content)
            tar.addfile(info, io.BytesIO(content))

        folder("tmp", 0o1777)
        folder("var/lib/roci", 0o700, USER)
        file("etc/passwd", f"roci:x:{USER}:{USER}:roci:/var/lib/roci:/usr/bin/roci\n".encode())
        file("etc/group", f"roci:x:{USER}:\n".encode())
        for path in map(pathlib.Path, CERTIFICATES):
            if path.exists():
                file("etc/ssl/certs/ca-certificates.crt", path.read_bytes())
                break
        for path in libraries(binary):
            file(str(path).lstrip("/"), path.resolve().read_bytes(), 0o755)
        file("usr/bin/roci", binary.read_bytes(), 0o755)
    return buffer.getvalue()


def image(binary: pathlib.Path, architecture: str, version: str) -> dict[str, bytes]:
    """The files of the OCI layout by name."""
    plain = layer(binary)
    packed = gzip.compress(plain, mtime=0)
    files: dict[str, bytes] = {}

    def blob(kind: str, content: bytes) -> dict:
        digest = hashlib.sha256(content).hexdigest()
        files[f"blobs/sha256/{digest}"] = content
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    def text(value: dict) -> bytes:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Env": ["PATH=/usr/bin", "HOME=/var/lib/roci", "ROCI_HOME=/var/lib/roci", "ROCI_HOST=0.0.0.0"],
            "Entrypoint": ["/usr/bin/roci"],
            "Cmd": ["serve"],
            "ExposedPorts": {"8080/tcp": {}},
            "Volumes": {"/var/lib/roci": {}},
            "WorkingDir": "/var/lib/roci",
            "StopSignal": "SIGTERM",
            "Labels": {"org.opencontainers.image.title": "roci", "org.opencontainers.image.version": version},
        },
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(plain).hexdigest()]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("application/vnd.oci.image.config.v1+json", text(config)),
        "layers": [blob("application/vnd.oci.image.layer.v1.tar+gzip", packed)],
    }
    entry = blob("application/vnd.oci.image.manifest.v1+json", text(manifest))
    entry["annotations"] = {"org.opencontainers.image.ref.name": f"roci:{version}"}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    files["index.json"] = text(index)
    files["oci-layout"] = text({"imageLayoutVersion": "1.0.0"})
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("image", type=pathlib.Path)
    parser.add_argument("--version", default="latest")
    arguments = parser.parse_args()
    architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
    files = image(arguments.binary, architecture, arguments.version)
    with tarfile.open(arguments.image, "w") as tar:
        for name, content in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    digest = json.loads(files["index.json"])["manifests"][0]["digest"]
    print(f"{arguments.image}: roci:{arguments.version} {digest}")


if __name__ == "__main__":
    main()
