"""A private authority and the certificates of a server, made by `openssl`."""

import subprocess

_CONFIG = """
[ca]
default_ca = private
[private]
dir = {folder}
database = $dir/index.txt
new_certs_dir = $dir
serial = $dir/serial
default_md = sha256
policy = any
x509_extensions = server
[any]
commonName = supplied
[server]
subjectAltName = DNS:{host}
"""


class Authority:
    """An authority that only those trust who are given `certificate`."""

    def __init__(self, folder):
        self._folder = folder
        self.certificate = folder / "authority.pem"
        self._key = folder / "authority.key"
        (folder / "index.txt").touch()
        (folder / "serial").write_text("01\n")
        new_key = ("-newkey", "rsa:2048", "-nodes", "-keyout", self._key)
        _openssl("req", "-x509", *new_key, "-subj", "/CN=private", "-days", "2", "-out", self.certificate)

    def issue(self, certificate, key, host, *, expired=False):
        """Write the certificate of a server called `host`, and its key, to these files."""
        request, config = self._folder / "request.pem", self._folder / "ca.conf"
        config.write_text(_CONFIG.format(folder=self._folder, host=host))
        _openssl(
            "req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-subj", f"/CN={host}", "-out", request
        )
        times = ("-startdate", "20200101000000Z", "-enddate", "20200102000000Z") if expired else ("-days", "2")
        signed_by = ("-cert", self.certificate, "-keyfile", self._key)
        options = ("-batch", "-notext", "-config", config, *signed_by, *times)
        (self._folder / "index.txt").write_text("")  # the same name again
        _openssl("ca", *options, "-in", request, "-out", certificate)


def _openssl(*arguments):
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
