"""A node of Kubernetes: the kubelet, with containerd and runc, and a network that pods share with this machine.

All of it is in namespaces of its own, which end with their first process: no mount, container or link outlives it. The
kubelet is built from its source, with the rest of Kubernetes; containerd, runc, the network's plugins and dnsmasq are
Debian's packages. Images come from podman's storage, where `scripts.dev.image` builds them.

Network policies have no effect: that is the work of plugins that are not here.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from scripts.dev import tools
from scripts.dev.cache import run
from scripts.dev.image import IMAGE, podman
from scripts.dev.kubernetes import DOMAIN, SERVICE, ControlPlane, programs
from scripts.dev.process import Process, Server

HERE = "10.243.7.1"
"""The address of this machine for pods. What they shall reach listens on it."""

NODE = "node-1"

_ADDRESS = "10.243.7.2"  # the node's
_PODS = "10.244.7.0/24"
_LINK = "kbackup-node"  # this machine's end of its link to the node

_PAUSE = "localhost/kbackup-pause:1"
_CGROUP = "kbackup-node"
_CGROUPS = Path("/sys/fs/cgroup")
_SHARE = 8  # processes that the pods together count as

_KERNEL = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""What a kubelet sets in the kernel of its machine. This machine is not its own: it gets files in their place."""

_START = """
set -eu
mount --make-rshared /
for folder in /run /var/log /var/lib/cni; do mkdir -p "$folder"; mount -t tmpfs none "$folder"; done
for name in $SETTINGS; do
  mkdir -p "$FOLDER/kernel/$(dirname "$name")"
  cat "/proc/sys/$name" > "$FOLDER/kernel/$name"
  mount --bind "$FOLDER/kernel/$name" "/proc/sys/$name"
done
dnsmasq --keep-in-foreground --conf-file="$FOLDER/dnsmasq.conf" > "$FOLDER/dnsmasq.log" 2>&1 &
containerd --config "$FOLDER/containerd.toml" > "$FOLDER/containerd.log" 2>&1 &
until ctr version > /dev/null 2>&1; do sleep 0.1; done
touch "$FOLDER/ready"
while [ ! -e "$FOLDER/images" ]; do sleep 0.1; done
exec "$PROGRAMS/kubelet" --config="$FOLDER/kubelet.json" --kubeconfig="$KUBECONFIG" --hostname-override="$NODE" \
  --node-ip="$ADDRESS" --root-dir="$FOLDER/kubelet" --v=2
"""


class PodNetwork(Server):
    """The network of a node and its pods, and a link to this machine. One run at a time has it."""

    name = "pod-network"

    def __init__(self) -> None:
        super().__init__()
        self._linked = False

    def close(self) -> None:
        if self._linked:
            # The kernel would remove it as well, but only some time after the processes have ended.
            subprocess.run([tools.program("ip"), "link", "delete", _LINK], capture_output=True, check=False)
            self._linked = False
        super().close()

    def _open(self) -> None:
        self._processes[0] = Process([tools.program("unshare"), "--net", "sleep", "infinity"], self.folder / "log")
        self.wait(0, self._is_apart, "the network of pods")
        self._ip("link", "add", _LINK, "type", "veth", "peer", "name", "node", "netns", str(self.pid()))
        self._linked = True
        self._ip("address", "add", f"{HERE}/30", "dev", _LINK)
        self._ip("link", "set", _LINK, "up")
        self._ip("route", "add", _PODS, "via", _ADDRESS)

        self._within("ip", "link", "set", "lo", "up")
        self._within("ip", "address", "add", f"{_ADDRESS}/30", "dev", "node")
        self._within("ip", "link", "set", "node", "up")
        self._within("ip", "route", "add", "default", "via", HERE)
        self._within("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")

    def lead_to(self, port: int) -> None:
        """Lead the service `kubernetes` to a port of this machine, as kube-proxy would."""
        rule = ["--destination", SERVICE, "--protocol", "tcp", "--dport", "443"]
        target = ["--jump", "DNAT", "--to-destination", f"{HERE}:{port}"]
        self._within("iptables", "--table", "nat", "--append", "PREROUTING", *rule, *target)

    def entered(self, *argv: str) -> list[str]:
        """Return a command line that runs a program within the network."""
        return [tools.program("nsenter"), f"--net=/proc/{self.pid()}/ns/net", *argv]

    def _is_apart(self) -> bool:
        return Path(f"/proc/{self.pid()}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()

    def _within(self, *argv: str) -> None:
        run(self.entered(*argv), "setting up the network of pods", "look into its output")

    def _ip(self, *arguments: str) -> None:
        hint = "end the other run that has a node, or run as root"
        run([tools.program("ip"), *arguments], "linking the network of pods to this machine", hint)


class Node(Server):
    """The one node of a cluster, which runs the image of `scripts.dev.image`."""

    name = "node"

    def __init__(self, cluster: ControlPlane, network: PodNetwork) -> None:
        super().__init__()
        self._cluster, self._network = cluster, network

    @property
    def logs(self) -> Path:
        """The logs of containers."""
        return self.folder / "logs"

    def close(self) -> None:
        super().close()
        _remove_cgroups()

    def _open(self) -> None:
        self.logs.mkdir()
        _make_cgroups()
        self._write_settings()
        env = {
            "FOLDER": str(self.folder),
            "PROGRAMS": str(programs()),
            "KUBECONFIG": str(self._cluster.kubeconfig(f"system:node:{NODE}", "system:nodes")),
            "NODE": NODE,
            "ADDRESS": _ADDRESS,
            "SETTINGS": " ".join(_KERNEL),
        }
        apart = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        argv = self._network.entered(tools.program("unshare"), *apart, "sh", "-c", _START)
        self._processes[0] = Process(argv, self.folder / "log", env)
        self.wait(0, (self.folder / "ready").exists, "containerd")
        self._import_images()
        (self.folder / "images").touch()
        self.wait(0, self._is_ready, "the kubelet")

    def _write_settings(self) -> None:
        (self.folder / "containerd.toml").write_text(_containerd(self.folder))
        (self.folder / "cni").mkdir()
        (self.folder / "cni" / "pods.conflist").write_text(json.dumps(_network()))
        # Names of the cluster, of which one has an address; no others.
        names = [f"address=/{DOMAIN}/", f"host-record=kubernetes.default.svc.{DOMAIN},{SERVICE}"]
        lines = ["no-resolv", "no-hosts", "bind-interfaces", f"listen-address={_ADDRESS}", "user=root", *names]
        (self.folder / "dnsmasq.conf").write_text("\n".join(lines) + "\n")
        (self.folder / "resolv.conf").touch()
        (self.folder / "kubelet.json").write_text(json.dumps(self._kubelet()))

    def _kubelet(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": _ADDRESS,
            "authentication": {"x509": {"clientCAFile": str(self._cluster.folder / "ca.pem")}},
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "clusterDomain": DOMAIN,
            "clusterDNS": [_ADDRESS],
            "resolvConf": str(self.folder / "resolv.conf"),
            "podLogsDir": str(self.logs),
            "volumePluginDir": str(self.folder / "plugins"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{_CGROUP}",
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "makeIPTablesUtilChains": False,
            # A disk that is nearly full is no reason to end pods.
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
        }

    def _import_images(self) -> None:
        """Load the image, and that of a pod's sandbox, from podman's storage."""
        with tempfile.TemporaryDirectory(prefix="images-", dir=self.folder) as folder:
            packed = Path(folder, "pause.tar")
            pack = ["tar", "-C", str(programs()), "-cf", str(packed), "pause"]
            run(pack, "packing the image of sandboxes", "check that the disk has room")
            entry = 'ENTRYPOINT ["/pause"]'
            run(podman("import", "--change", entry, str(packed), _PAUSE), "importing it", "check podman's storage")
            saved = Path(folder, "images.tar")
            save = podman("save", "--quiet", "--multi-image-archive", "--output", str(saved), IMAGE, _PAUSE)
            run(save, "saving the images", "build the image: make image")
            load = self._entered("ctr", "--namespace", "k8s.io", "images", "import", str(saved))
            run(load, "importing the images into containerd", f"look into {self.folder}/containerd.log")

    def _entered(self, *argv: str) -> list[str]:
        """Return a command line that runs a program of the node."""
        (child,) = Path(f"/proc/{self.pid()}/task/{self.pid()}/children").read_text().split()
        apart = [f"--mount=/proc/{child}/ns/mnt", f"--pid=/proc/{child}/ns/pid"]
        return [tools.program("nsenter"), *apart, *argv]

    def _is_ready(self) -> bool:
        done = self._cluster.try_kubectl("get", "node", NODE, "--output=json")
        conditions = json.loads(done.stdout)["status"]["conditions"] if done.returncode == 0 else []
        states = {condition["type"]: condition["status"] for condition in conditions}
        return states.get("Ready") == "True"


def _containerd(folder: Path) -> str:
    """Return containerd's settings."""
    return f"""
version = 2
root = "{folder}/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{_PAUSE}"
restrict_oom_score_adj = true # root of a machine within a machine may lower none
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{folder}/cni"
"""


def _network() -> dict[str, object]:
    """Return the settings of the plugins that give a pod its network."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": _PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "kbackup-pods", "isGateway": True, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}


def _make_cgroups() -> None:
    """Make the group of processes that all pods are in, with a part of the processors: without it, pods would have no
    more of a busy machine together than one of the processes beside them."""
    if (_CGROUPS / "cgroup.controllers").exists():
        (_CGROUPS / _CGROUP).mkdir(exist_ok=True)
        with suppress(OSError):  # the machine does not share processors by groups
            (_CGROUPS / _CGROUP / "cpu.weight").write_text(str(_SHARE * 100))
        return
    for controller in _CGROUPS.iterdir():
        group = controller / _CGROUP
        group.mkdir(exist_ok=True)
        # A group without processors and memory takes no processes.
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (group / name).exists():
                (group / name).write_text((controller / name).read_text())
    (_CGROUPS / "cpu" / _CGROUP / "cpu.shares").write_text(str(_SHARE * 1024))


def _remove_cgroups() -> None:
    """Remove the groups of processes that have ended with the node."""
    for controller in (_CGROUPS, *_CGROUPS.iterdir()):
        for folder, _, _ in os.walk(controller / _CGROUP, topdown=False):
            with suppress(OSError):  # its last process is about to end
                Path(folder).rmdir()
