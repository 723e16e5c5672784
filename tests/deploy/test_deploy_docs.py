"""docs/deploy.md, command by command, with real processes; and what must hold on the federation that they make."""

import contextlib
import re
import shlex
import shutil
from pathlib import Path

import httpx
import jax
import numpy as np
import pytest
from flwr.proto import fleet_pb2 as fleet
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from loopback import ROOT, Loopback, until
from needs import missing

import fedbc
from fedbc.flower import make_keys, write_app
from fedbc.flower.control import pack
from fedbc.flower.link import Link
from fedbc.flower.node import read_private_key
from fedbc.flower.superlink import check_folder

PAGE = (ROOT / "docs" / "deploy.md").read_text()


def blocks(heading):
    """The shell blocks of a section."""
    section = re.search(rf"\n## {heading}\n(.*?)\n## ", PAGE, re.DOTALL).group(1)
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


class Reader(Loopback):
    """Types the commands of a section: scripts that go on start in the background, everything else ends first."""

    def __init__(self, folder):
        super().__init__(folder)
        self.folder, self.replaced = folder, {}
        self.app = folder
        self.devices = 0

    def type(self, block):
        for old, new in self.replaced.items():
            block = block.replace(old, new)
        script = re.search(r"(?:(\w+=\S+) )?\./(super\w+)\.sh ?(\d?)\s*$", block)
        if script is None:
            return self._type_lines(block)
        variable, name, device = script.groups()
        env = dict([variable.split("=")] if variable else [])
        env |= {name: "" for name in self.env if name.startswith("FLWR_")}  # the scripts set them
        machine = f"device-{device}" if device else "server"
        folder = self.machine(machine) if block.startswith("cd ") else self.app
        if name == "superlink":
            self.link = self.listening(self.start(name, "./superlink.sh", folder=folder, **env))
        elif name == "superexec":
            self.exec = self.start(name, "./superexec.sh", folder=folder, **env)
        else:
            env["SUPERLINK"] = f"127.0.0.1:{self.port}"
            self.start(machine, "./supernode.sh", device, folder=folder, **env)
            self.devices += 1
        return ""

    def machine(self, name):
        return self.folder / f"{name}.example.org" / "my-federation"

    def _type_lines(self, block):
        if "pip install" in block:
            assert block.startswith("pip install 'fedbc[flower]'\n")
            block = block.split("\n", 1)[1]
        if "flwr run" in block:
            until(lambda: self.link.text.count("Activated node_id") >= self.devices, 60, "SuperNodes")
        where = self.folder / "where"
        said = self.shell(f"set -e\n{block}\npwd > {shlex.quote(str(where))}", folder=self.app, seconds=200)
        self.app = Path(where.read_text().strip())
        self.env["FLWR_HOME"] = str(self.app / "flwr")
        return said


def close(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-6)


REFUSALS = {
    "a device": "another process is there with it",  # whose own node is there
    "an unknown key": "its key is not registered",
    "no key": "401",
    "no TLS": "disconnected|reset by peer",  # the server hangs up, before or after the request is out
    "another authority": "CERTIFICATE_VERIFY_FAILED",
}


def tried_to_join(loop, other):
    """What nodes that may not join are told; None if they may."""
    address, ca = f"127.0.0.1:{loop.port}", str(loop.app / "keys" / "ca.crt")
    make_keys(other, devices=1)
    own, stranger = (read_private_key(folder / "device-0") for folder in (loop.app / "keys", other))
    version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
    plain = {
        "no key": FleetHttpClient.from_server_address(address, False, ca, interceptors=[version]),
        "no TLS": FleetHttpClient.from_server_address(address, True, None, interceptors=[version]),
    }
    links = {
        "a device": Link(address, ca, own),
        "an unknown key": Link(address, ca, stranger),
        "another authority": Link(address, str(other / "ca.crt"), own),
    }
    told = {}
    for who, link in links.items():
        request = fleet.ActivateNodeRequest(
            public_key=public_key_to_bytes(link.key.public_key()), heartbeat_interval=30
        )
        told[who] = refusal(lambda link=link, request=request: link.once("ActivateNode", request))
    for who, client in plain.items():
        told[who] = refusal(lambda client=client, request=request: client.ActivateNode(request))
    for connection in (*links.values(), *plain.values()):
        connection.close()
    return told


def refusal(ask):
    try:
        ask()
    except (fedbc.FedBCError, httpx.HTTPError) as error:
        return str(error)
    return None


def test_one_machine(tmp_path, subtests, real_data):
    with Reader(tmp_path) as loop:
        loop.env["FEDBC_DATA"] = str(real_data)
        loop.replaced["--rounds 2"] = f"--rounds 2 --address 127.0.0.1:{loop.port}"  # not everybody's port 8000
        said = [loop.type(block) for block in blocks("Three devices on one machine")]
        app, federation = loop.app, fedbc.data.synthetic(devices=3, seed=1)
        with subtests.test("the run is there and is shown"):
            assert "round 2 done: global_accuracy" in said[-2]
            assert "my-federation" in said[-2]
            result = fedbc.load(app / "runs" / "my-federation")
            wanted = fedbc.simulate(fedbc.FedBC(), fedbc.models.logistic(60, 10), federation, rounds=2)
            close(result.global_model, wanted.global_model)
            assert list(result.history) == list(wanted.history)
            np.testing.assert_allclose(result.history.local_accuracy, wanted.history.local_accuracy)

        # At once, beside the page's second run: most of a round is waiting.
        options = {"rounds": 2, "seed": 4, "evaluate_every": 2, "sample": 2, "epochs": 2}
        settings = {f"run__{k}": v for k, v in options.items()} | {"run__out": "runs/perfedbc"}
        perfedbc = loop.run(ROOT / "examples" / "deploy_synthetic", algorithm__name="perfedbc", **settings)
        mnist = loop.run(ROOT / "examples" / "deploy_mnist", run__rounds=1) if real_data.exists() else None
        with subtests.test("equal to the simulator"):  # as FedBC is above, and SCAFFOLD in test_faults
            loop.wait(perfedbc, 300)
            wanted = fedbc.simulate(fedbc.PerFedBC(lr=0.01), fedbc.models.logistic(60, 10), federation, **options)
            close(fedbc.load(app / "runs" / "perfedbc").global_model, wanted.global_model)
        with subtests.test("the page's second run"):
            until((app / "runs" / "second" / "summary.json").exists, 120, "result of the second run")
        with subtests.test("the example with MNIST"):
            if mnist is None:
                missing(f"the example on real data: {real_data} is absent", "FEDBC_REQUIRE_DATA")
            loop.wait(mnist, 300)
            row = fedbc.load(app / "runs" / "mnist").history.iloc[-1]
            assert row.global_accuracy > 0.5
            assert row.local_accuracy > row.global_accuracy

        with subtests.test("a device reads its own model"):
            (folder,) = (app / "state").glob("my-federation-*/device-0")
            shapes = fedbc.flower.messages.Shapes.of(fedbc.FedBC(), fedbc.models.logistic(60, 10))
            kept = fedbc.flower.read_state(folder, shapes.device)
            assert kept.round == 2
            assert kept.state.multiplier > 0

        before = loop.link.text.count("Activated node_id")
        for who, why in tried_to_join(loop, tmp_path / "other").items():
            with subtests.test("a node that may not join", who=who):
                assert why is not None
                assert re.search(REFUSALS[who], why)
        assert loop.link.text.count("Activated node_id") == before

        with subtests.test("telemetry is off"):
            for process in loop.processes[:5]:
                (running,) = process.members("\0deploy\0")[:1]
                variables = Path(f"/proc/{running}/environ").read_bytes().split(b"\0")
                assert b"FLWR_TELEMETRY_ENABLED=0" in variables

        with subtests.test("no secrets in logs, nothing but code in the app that travels"):
            keys = [f.read_text() for f in (app / "keys").iterdir() if f.suffix not in (".pub", ".crt")]
            secret = {line for key in keys for line in key.splitlines() if "-----" not in line and len(line) > 20}
            texts = [file.read_text(errors="replace") for file in loop.logs.glob("*.log")]
            texts += [file.read_text() for file in app.glob("runs/*/log.txt")]
            assert secret
            assert not [line for line in secret for text in texts if line in text]
            travelled = {f.name for f in (app / "flwr" / "apps").rglob("*") if f.is_file() and f.suffix != ".pyc"}
            assert {n for n in travelled if not n.endswith(".py")} <= {
                "pyproject.toml",
                "CONTENT",
                "APP.md",
                "README.md",
            }


def test_three_machines(tmp_path, subtests):
    """Machines are folders here, which share nothing but what the page copies; scp becomes cp."""
    with Reader(tmp_path) as loop:
        loop.replaced |= {
            "server.example.org:8000": f"localhost:{loop.port}",
            "HOST=0.0.0.0": "HOST=127.0.0.1",
            "ssh -N -L 8000:127.0.0.1:8000 you@server.example.org": "true",
            "flwr run . --stream": "flwr run . --stream --run-config 'run.evaluate-every=1'",
        }
        for name in ("server", *(f"device-{device}" for device in range(3))):
            loop.machine(name).parent.mkdir()
            copied = f"cp -r machines/{name} {shlex.quote(str(loop.machine(name)))}"
            loop.replaced[f"scp -r machines/{name} you@{name}.example.org:my-federation"] = copied
        said = [loop.type(block) for block in blocks("Three machines")]
        assert "round 1 done: global_accuracy" in said[-1]
        with subtests.test("a device holds its own key and state, and no other"):
            for device in range(3):
                machine = loop.machine(f"device-{device}")
                files = {p.name for p in machine.joinpath("keys").iterdir()}
                assert files == {"ca.crt", f"device-{device}", *(f"device-{other}.pub" for other in range(3))}
                assert [p.name for p in machine.glob("state/*/*") if p.is_dir()] == [f"device-{device}"]
        with subtests.test("the server holds no key but its own"):
            server = loop.machine("server")
            public = {f"device-{device}.pub" for device in range(3)}
            wanted = {"ca.crt", "server.crt", "server.key", "superexec.secret", *public}
            assert {p.name for p in server.joinpath("keys").iterdir()} == wanted
            assert not list(server.glob("state/*/device-*"))
            assert (server / "runs" / "my-federation" / "summary.json").exists()
            check_folder(server / "keys")
            with pytest.raises(fedbc.InputError, match=r"has ca\.key, device-0, device-1, \.\.\.: keys"):
                check_folder(loop.app / "keys")
        with subtests.test("doctor and status, on both sides"):
            well = loop.shell("fedbc deploy doctor", folder=server)
            assert "WRONG" not in well
            assert "all 3 devices are registered" in well
            assert "3 of 3 devices are connected" in well
            device = loop.shell("fedbc deploy doctor", folder=loop.machine("device-1"))
            assert re.search(r"well   device-1 is connected, as node \d+", device)
            assert re.search(r"well   this machine's clock and the server's differ by [01] s", device)
            assert "3 of 3 devices online: 0, 1, 2" in loop.shell("fedbc deploy status", folder=server)
        with subtests.test("a revoked key is refused, and a new one takes its place"):
            done = loop.shell("fedbc deploy revoke 1")
            assert "is refused from now on" in done
            revoked = next(process for process in loop.processes if process.log.stem == "device-1")
            until(lambda: "its key is not registered, or was revoked" in revoked.text, 60, "word of the refusal")
            assert "2 of 2 devices online: 0, 2" in loop.shell("fedbc deploy status")
            loop.shell("fedbc deploy keys keys --devices 3 && fedbc deploy register")
            shutil.copy(loop.app / "keys" / "device-1", loop.machine("device-1") / "keys" / "device-1")
            revoked.end()
            loop.start("device-1-anew", "./supernode.sh", 1, folder=loop.machine("device-1"))
            until(lambda: "3 of 3 devices online" in loop.shell("fedbc deploy status"), 60, "return of device 1")


def test_the_commands_refuse_what_they_cannot_do(tmp_path, capsys):
    from fedbc.cli import main

    def fails(*arguments):
        with pytest.raises(SystemExit) as error:
            main([str(a) for a in arguments])
        return error.value.code, capsys.readouterr().err

    def said(*arguments):
        with contextlib.suppress(SystemExit):
            main([str(a) for a in arguments])
        return capsys.readouterr()

    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("")
    assert fails("deploy", "init", tmp_path / "taken") == (
        2,
        f"fedbc: {tmp_path / 'taken'} exists already: give another folder, or remove it first\n",
    )
    assert fails("deploy", "init", tmp_path / "x", "--algorithm", "fedb")[1].endswith("did you mean 'fedbc'?\n")
    assert "begin it with a letter" in fails("deploy", "init", tmp_path / "7")[1]
    for bad in ("here", "$(touch x):8000", "a;b:8000", "`id`:1", 'a"b:1', "host:99999", "-x:1", "a b:1"):
        assert "give host:port" in fails("deploy", "init", tmp_path / "y", "--address", bad)[1], bad
    assert "host='a b'" in fails("deploy", "keys", tmp_path / "k", "--host", "a b")[1]
    (tmp_path / "superlink.sh").write_text("${PORT:-8000}")
    for command in ("doctor", "status", "register"):
        (tmp_path / "keys").mkdir(exist_ok=True)
        make_keys(tmp_path / "keys", devices=1)
        assert "give host:port" in "".join(said("deploy", command, "--folder", tmp_path, "--address", "here")), command
        (tmp_path / "keys" / "ca.crt").write_text("junk")
        assert "ca.crt is damaged" in "".join(said("deploy", command, "--folder", tmp_path)), command
        shutil.rmtree(tmp_path / "keys")


def test_packing_removes_nothing_but_what_was_packed(tmp_path):
    app = tmp_path / "app"
    write_app(app, devices=1)
    make_keys(app / "keys", devices=1)
    for _ in range(2):
        pack(app, tmp_path / "machines")
    assert not (tmp_path / "machines" / "device-0" / "keys" / "ca.key").exists()
    own = tmp_path / "machines" / "device-0" / "state"
    own.mkdir()
    with pytest.raises(fedbc.InputError, match="has state, which is not of"):
        pack(app, tmp_path / "machines")
    assert own.exists()


def test_keys_are_kept_private_and_never_overwritten(tmp_path):
    from cryptography import x509

    folder = tmp_path / "keys"
    made = make_keys(folder, devices=2, hosts=["server.example.org", "10.0.0.5"])
    assert folder.stat().st_mode & 0o777 == 0o700
    for file in made:
        private = file.suffix not in (".crt", ".pub")
        assert file.stat().st_mode & 0o777 == (0o600 if private else 0o644), file
    assert (folder / "device-0").read_text().startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    assert (folder / "device-0.pub").read_text().startswith("ecdsa-sha2-nistp256 ")
    before = {file: file.read_bytes() for file in made}
    assert {f.name for f in make_keys(folder, devices=3)} == {"device-2", "device-2.pub"}
    assert {file: file.read_bytes() for file in made} == before
    assert make_keys(folder, devices=3, hosts=["10.0.0.5"]) == []  # the certificate is for it already
    (folder / "device-0").unlink()  # it is on its device
    (folder / "device-1.pub").unlink()  # the process that made it was killed
    assert make_keys(folder, devices=3) == [folder / "device-1.pub"]
    assert all(file.read_bytes() == before[file] for file in made if file.name != "device-0")
    with pytest.raises(fedbc.InputError, match=r"is not for other\.example\.org: add --renew"):
        make_keys(folder, devices=3, hosts=["10.0.0.5", "other.example.org"])
    assert {f.name for f in make_keys(folder, devices=3, hosts=["b.example.org"], renew=True)} == {
        "server.crt",
        "server.key",
    }
    certificate = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "b.example.org" in names.get_values_for_type(x509.DNSName)
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    assert (authority.not_valid_after_utc - certificate.not_valid_after_utc).days > 9 * 365 - 10
    (folder / "ca.key").unlink()
    with pytest.raises(fedbc.InputError, match=r"only one of ca\.crt and ca\.key"):
        make_keys(folder, devices=3)
