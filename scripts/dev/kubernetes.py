"""Kubernetes' control plane: etcd, API server, controllers and scheduler, built from their own source.

Without a node (`scripts.dev.kubelet`) its pods stay pending, but everything that the API server and the controllers say
is said: admission, rights, the jobs of cron jobs, the pods of jobs.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import tempfile
import urllib.request
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kbackup.errors import KbackupError
from scripts.dev import tools
from scripts.dev.cache import entry, run
from scripts.dev.process import HANG, Process, Server, free_ports
from scripts.dev.secured import Authority, Issued

RELEASE = "v1.34.4"
_ETCD = "v3.6.4"  # the one that this release is tested with
_KUBERNETES = "k8s.io/kubernetes"
_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")

DOMAIN = "cluster.local"
"""The domain of names of services."""

_SERVICES = "10.96.0.0/24"
SERVICE = "10.96.0.1"
"""The address of the service `kubernetes`: the first one for services."""

# The one process of a pod's sandbox. It waits for a signal; there is nothing in its image beside it.
_PAUSE = """package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	<-ended
}
"""


@cache
def programs() -> Path:
    """The folder of Kubernetes' programs, `etcd` and `pause`; built on first use, in twelve minutes on two cores."""
    return entry(f"kubernetes-{RELEASE}", _build)


def _build(folder: Path) -> None:
    """Build the programs, and leave nothing in Go's own caches: 3 GB that nobody else needs."""
    with tempfile.TemporaryDirectory(prefix="go-", dir=folder.parent) as scratch:
        source = Path(scratch, "source")
        (source / "pause").mkdir(parents=True)
        (source / "pause" / "main.go").write_text(_PAUSE)
        env = {
            "GOCACHE": str(Path(scratch, "cache")),
            "GOMODCACHE": str(Path(scratch, "modules")),
            "GOFLAGS": "-mod=mod -modcacherw -buildvcs=false",
            "GOWORK": "off",
            "CGO_ENABLED": "0",
        }
        (source / "go.mod").write_text(_module(env))
        packages = [f"{_KUBERNETES}/cmd/{name}" for name in _PROGRAMS]
        version = f"-X k8s.io/component-base/version.gitVersion={RELEASE}"
        argv = [tools.go(), "build", "-C", str(source), "-trimpath", f"-ldflags=-s -w {version}", "-o", f"{folder}/"]
        hint = "check that Go modules can be fetched, then run again"
        run([*argv, "./pause", "go.etcd.io/etcd/server/v3", *packages], f"building Kubernetes {RELEASE}", hint, env)
        (folder / "server").rename(folder / "etcd")  # Go names a program after its folder


def _module(env: dict[str, str]) -> str:
    """Return the go.mod of a module that builds Kubernetes from outside its repository.

    Kubernetes requires its own libraries at v0.0.0, and has them in its repository: from outside, each is replaced by
    the version that was published of it.
    """
    argv = [tools.go(), "mod", "download", "-json", f"{_KUBERNETES}@{RELEASE}"]
    hint = "check that Go modules can be fetched, then run again"
    go_mod = json.loads(run(argv, f"fetching Kubernetes {RELEASE}", hint, env | {"GOFLAGS": ""}))["GoMod"]
    described = json.loads(run([tools.go(), "mod", "edit", "-json", go_mod], f"reading {go_mod}", hint))
    staged = [each["Path"] for each in described["Require"] if each["Version"] == "v0.0.0"]
    published = RELEASE.replace("v1.", "v0.")
    lines = [
        "module kbackup.test/kubernetes",
        f"go {described['Go']}",
        f"godebug default=go{described['Go'].rsplit('.', 1)[0]}",
        f"require {_KUBERNETES} {RELEASE}",
        f"require go.etcd.io/etcd/server/v3 {_ETCD}",
    ]
    lines += [f"replace {path} => {path} {published}" for path in staged]
    return "\n".join(lines) + "\n"


_OPERATOR = "github.com/prometheus-operator/prometheus-operator"
_OPERATOR_RELEASE = "v0.85.0"


def monitoring_kinds() -> Path:
    """The folder with the definitions of ServiceMonitor and PrometheusRule, as Prometheus Operator installs them."""

    def fill(folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="go-", dir=folder.parent) as scratch:
            env = {"GOMODCACHE": scratch, "GOFLAGS": "-modcacherw", "GOWORK": "off"}
            argv = [tools.go(), "mod", "download", "-json", f"{_OPERATOR}@{_OPERATOR_RELEASE}"]
            hint = "check that Go modules can be fetched, then run again"
            fetched = json.loads(run(argv, "fetching Prometheus Operator", hint, env))["Dir"]
            for kind in ("servicemonitors", "prometheusrules"):
                name = f"monitoring.coreos.com_{kind}.yaml"
                shutil.copyfile(Path(fetched, "example", "prometheus-operator-crd", name), folder / name)

    return entry(f"monitoring-kinds-{_OPERATOR_RELEASE}", fill)


class Request(NamedTuple):
    """What a service account asked of the API server, and the HTTP status of the answer."""

    verb: str
    resource: str
    status: int


# Service accounts of workloads; those of Kubernetes' own controllers are left out.
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
    ],
}


class KubectlError(KbackupError):
    """kubectl ended with an error; the message is its own."""


class ControlPlane(Server):
    """A cluster's control plane, with the admission that Kubernetes has by default (Pod Security too).

    `kubectl` is the cluster's administrator. Service accounts, other users and anonymous ones have the rights that RBAC
    gives them.
    """

    name = "kubernetes"
    taken = "address already in use"

    def __init__(self) -> None:
        super().__init__()
        self.authority = Authority()
        self._port = 0

    @property
    def port(self) -> int:
        """The port of the API server."""
        return self._port

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self._port}"

    def kubeconfig(self, user: str, group: str = "") -> Path:
        """Return the file by which a user with a certificate comes."""
        path = self.folder / f"{user.replace(':', '-')}.conf"
        if not path.exists():
            issued = self.authority.issue(user, organization=group)
            certificate, key = self._write_pair(path.stem, issued)
            cluster = {"server": self.url, "certificate-authority": str(self._path("ca.pem"))}
            config = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": user, "user": {"client-certificate": certificate, "client-key": key}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                "current-context": "test",
            }
            path.write_text(json.dumps(config))
        return path

    @property
    def admin(self) -> Path:
        """The kubeconfig of the administrator."""
        return self.kubeconfig("admin", "system:masters")

    def kubectl(self, *arguments: str, text: str = "") -> str:
        """Run kubectl as the administrator, with `text` as its input, and return what it prints."""
        done = self.try_kubectl(*arguments, text=text)
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}", "read the answer of the server")
        return done.stdout

    def try_kubectl(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """The same for commands that may fail."""
        argv = [str(programs() / "kubectl"), f"--kubeconfig={self.admin}", *arguments]
        # kubectl keeps what it learns of a server in the home directory
        env = {**os.environ, "HOME": str(self.folder)}
        return subprocess.run(argv, input=text, env=env, capture_output=True, text=True, check=False, timeout=HANG)

    def get(self, *arguments: str) -> Any:
        """Return an object, or a list of objects, as JSON has it."""
        return json.loads(self.kubectl("get", "--output=json", *arguments))

    def requests_of(self, namespace: str, account: str) -> set[Request]:
        """Return all that a service account has asked so far, by its log of audits."""
        user = f"system:serviceaccount:{namespace}:{account}"
        found = set()
        for line in self._path("audit.log").read_text().splitlines():
            event = json.loads(line)
            if event["user"]["username"] == user:
                asked = event.get("objectRef", {})
                resource = "/".join(filter(None, [asked.get("resource", ""), asked.get("subresource", "")]))
                found.add(Request(event["verb"], resource or event["requestURI"], event["responseStatus"]["code"]))
        return found

    def _path(self, name: str) -> Path:
        return self.folder / name

    def _write_pair(self, name: str, issued: Issued) -> tuple[str, str]:
        """Write a certificate and its key; return the paths."""
        certificate, key = self._path(f"{name}.pem"), self._path(f"{name}.key")
        certificate.write_text(issued.certificate)
        key.write_text(issued.key)
        return str(certificate), str(key)

    def _open(self) -> None:
        etcd_port, peer_port, self._port, controllers_port, scheduler_port = free_ports(5)
        self._start_plane(f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peer_port}")
        self._start_controllers(controllers_port, scheduler_port)

    def _start_plane(self, etcd: str, peers: str) -> None:
        """Start etcd and the API server."""
        data = ["--data-dir", str(self._path("etcd")), "--unsafe-no-fsync"]
        clients = ["--listen-client-urls", etcd, "--advertise-client-urls", etcd]
        members = ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        self._launch("etcd", *data, *clients, *members, "--initial-cluster", f"default={peers}")

        self._path("ca.pem").write_text(self.authority.certificate)
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        server = self._write_pair("server", self.authority.issue("kubernetes", names=names, addresses=[self.host]))
        # Tokens of service accounts are signed by the key of this certificate, and checked by it.
        tokens = self._write_pair("tokens", self.authority.issue("tokens"))
        self._path("audit.json").write_text(json.dumps(_AUDIT))
        kubelets = self._write_pair("kubelet-client", self.authority.issue("server", organization="system:masters"))
        self._launch(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            f"--bind-address={self.host}",
            f"--secure-port={self._port}",
            f"--tls-cert-file={server[0]}",
            f"--tls-private-key-file={server[1]}",
            f"--client-ca-file={self._path('ca.pem')}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            # What the service `kubernetes` leads to can't be loopback; whoever needs the server has its address.
            f"--advertise-address={self.host}",
            "--endpoint-reconciler-type=none",
            f"--service-cluster-ip-range={_SERVICES}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={tokens[0]}",
            f"--service-account-signing-key-file={tokens[1]}",
            f"--audit-policy-file={self._path('audit.json')}",
            f"--audit-log-path={self._path('audit.log')}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={kubelets[0]}",
            f"--kubelet-client-key={kubelets[1]}",
        )
        self.wait(len(self._processes) - 1, self._serves, "the API server")

    def _start_controllers(self, controllers_port: int, scheduler_port: int) -> None:
        controllers = str(self.kubeconfig("system:kube-controller-manager"))
        scheduler = str(self.kubeconfig("system:kube-scheduler"))
        alone = ["--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port"]
        own = ["--root-ca-file", str(self._path("ca.pem")), "--use-service-account-credentials"]
        own += ["--service-account-private-key-file", str(self._path("tokens.key"))]
        self._launch("kube-controller-manager", "--kubeconfig", controllers, *own, *alone, str(controllers_port))
        self._launch("kube-scheduler", "--kubeconfig", scheduler, *alone, str(scheduler_port))

    def _launch(self, program: str, *arguments: str) -> None:
        argv: Sequence[str] = [str(programs() / program), *arguments]
        self._processes[len(self._processes)] = Process(argv, self._path(f"{program}.log"))

    def _serves(self) -> bool:
        context = ssl.create_default_context(cadata=self.authority.certificate)
        context.load_cert_chain(self._path("kubelet-client.pem"), self._path("kubelet-client.key"))
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5, context=context) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
