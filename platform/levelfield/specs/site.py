"""A site's description: how its machines are reached. And a list of hosts for ssh.

A site file holds what every run at a site needs once: the launcher, partition and account, folders, interface,
environment, a command for node power. No secret stands in it: keys come from the user's ssh agent, tokens from the
user's own configuration.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, JsonValue, model_validator

from levelfield.specs.base import Document, Value, repeated_names
from levelfield.specs.tool import NodeCommand
from levelfield.specs.variables import TuningVariables, is_secret

# One word without a space, a control character or a leading dash, which a program would read as an option.
_WORD = re.compile(r"[A-Za-z0-9_.:/@%+=,\[\]{}][A-Za-z0-9_.:/@%+=,\[\]{}-]*")
# Linux allows 15 characters; a colon, an at sign and a dot are in names of aliases and VLANs.
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}")
# Features of nodes with sbatch's operators. No shell reads them.
_CONSTRAINT = re.compile(r"[A-Za-z0-9_(\[][A-Za-z0-9_.:=,|&*()\[\]-]*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?")  # Kubernetes' labels may be empty
_QUANTITY = re.compile(r"(\d+|\d+\.\d+)(m|[kMGTPE]|[KMGTPE]i)?")
_OPTION = re.compile(r"--[a-z][a-z0-9-]*(=[A-Za-z0-9_.:/@%+=,*\[\]{}-]*)?")
RDMA = "rdma/"  # resources of RDMA's device plugins; their users lock memory, which needs a capability
NO_RESOURCE = "none"  # of `devices`: pods have the devices without asking for a resource
POD_VOLUMES = ("package", "work", "local", "shared-memory", "runs")  # of every run
FIRST_PORT, LAST_PORT = 1024, 65535


def _check_word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError(f"found {text!r}, expected one word of letters, digits and _.:/@%+=,[]-, without a space")
    return text


def _check_interface(text: str) -> str:
    if not _INTERFACE.fullmatch(text):
        raise ValueError(
            f"found {text!r}, expected the name of one network interface, such as eth0: gloo knows no lists and no "
            "prefixes `=` and `^`; for NCCL alone set NCCL_SOCKET_IFNAME under `environment` of the site"
        )
    return text


def _check_option(text: str) -> str:
    if not _OPTION.fullmatch(text):
        raise ValueError(f"found {text!r}, expected an option such as --switches=1")
    return text


def _check_constraint(text: str) -> str:
    if not _CONSTRAINT.fullmatch(text):
        raise ValueError(f"found {text!r}, expected features of nodes, such as h100 or h100|h200")
    return text


def _check_label_value(text: str) -> str:
    if not _LABEL_VALUE.fullmatch(text):
        raise ValueError(f"found {text!r}, expected the value of a label: letters, digits and _.-, or nothing")
    return text


def _check_client_word(text: str) -> str:
    return text if re.fullmatch(r"-[A-Za-z0-9]+", text) else _check_word(text)


def _check_absolute(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(f"found {text!r}, expected a path from the root")
    return _check_word(text)


def _check_quantity(amount: int | str) -> int | str:
    if isinstance(amount, str) and not _QUANTITY.fullmatch(amount):
        raise ValueError(f"found {amount!r}, expected a number with a unit, such as 900Gi or 500m")
    return amount


def _refuse_secrets(variables: dict[str, str]) -> dict[str, str]:
    """Return the variables. Raises ValueError for one that looks like a secret, as a site file is shared."""
    for name, value in variables.items():
        if is_secret(name, value):
            raise ValueError(f"{name} looks like a secret; give it with --env, which no file keeps")
    return variables


def _refuse_secret(command: str) -> str:
    if is_secret("command", command):
        raise ValueError("found a secret in a file that is shared; let the command read it from a file of yours")
    return command


SafeWord = Annotated[str, AfterValidator(_check_word)]
Interface = Annotated[str, AfterValidator(_check_interface)]
Option = Annotated[str, AfterValidator(_check_option)]
Constraint = Annotated[str, AfterValidator(_check_constraint)]
LabelValue = Annotated[str, AfterValidator(_check_label_value)]
ClientWord = Annotated[str, AfterValidator(_check_client_word)]
AbsoluteFolder = Annotated[str, AfterValidator(_check_absolute)]
ResourceQuantity = Annotated[int | str, AfterValidator(_check_quantity)]
PublicVariables = Annotated[TuningVariables, AfterValidator(_refuse_secrets)]
LauncherValue = str | int | float | bool | tuple[str, ...]
Port = Annotated[int, Field(ge=FIRST_PORT, le=LAST_PORT)]


class Host(Value):
    """A machine that ssh reaches."""

    name: SafeWord  # as ssh_config knows it
    address: SafeWord | None = None  # where other nodes reach it; default: name
    user: SafeWord | None = None  # of ssh, as port; default: those of ssh_config
    port: int | None = Field(default=None, ge=1, le=LAST_PORT)
    slots: int | None = Field(default=None, ge=1)  # its devices
    # For the collectives; default: that by which the host reaches the other hosts' addresses.
    interface: Interface | None = None
    python: SafeWord = "python3"  # the interpreter that starts the node's part and makes the environment

    @property
    def peer_address(self) -> str:
        """The address of the host for other nodes."""
        return self.address or self.name


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class HostsFile(Document):
    """The hosts of a run, the first node first."""

    KIND: ClassVar[str] = "hosts"

    hosts: tuple[Host, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_are_unique(self) -> HostsFile:
        if repeated := repeated_names(host.name for host in self.hosts):
            raise ValueError(f"hosts: found {', '.join(repeated)} more than once, expected each name once")
        return self


class SshSite(Value):
    """Reaching hosts by ssh."""

    command: tuple[ClientWord, ...] = ("ssh",)  # of the ssh client, with its options, such as -4
    config: SafeWord | None = None  # an ssh_config beside the user's
    # On each node, for code, environments and runs; {user} is the user's name.
    folder: AbsoluteFolder = "/var/tmp/levelfield-{user}"
    # The command of the nodes' container engine, for `--runtime docker`; podman is one, too.
    container: SafeWord = "docker"
    connect_seconds: int = Field(default=20, ge=1, le=600)


class SlurmSite(Value):
    """Reaching nodes by Slurm."""

    partition: SafeWord | None = None
    account: SafeWord | None = None
    qos: SafeWord | None = None
    constraint: Constraint | None = None
    reservation: SafeWord | None = None
    minutes: int | None = Field(default=None, ge=1)  # the time limit
    gres: SafeWord | None = None  # such as gpu:{devices}
    exclusive: bool = False
    options: tuple[Option, ...] = ()  # further ones of sbatch
    container: Literal["none", "pyxis", "apptainer"] = "none"  # what starts `--runtime docker` there
    image: SafeWord | None = None
    local_folder: AbsoluteFolder | None = None  # on each node's own disk; ranks import from an environment there


class Toleration(Value):
    """A taint of a cluster's nodes that the pods accept. The keys are Kubernetes' own."""

    key: SafeWord | None = None
    operator: Literal["Exists", "Equal"] = "Exists"
    value: SafeWord | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None

    @model_validator(mode="after")
    def _value_is_compared(self) -> Toleration:
        if self.value is not None and self.operator != "Equal":
            raise ValueError(f"value: found {self.value!r} with operator Exists, expected `operator: Equal` beside it")
        return self


class PodVolume(Value):
    """A further volume of each pod."""

    name: SafeWord
    source: dict[SafeWord, JsonValue] = Field(min_length=1, max_length=1)  # its kind and fields, as Kubernetes has them
    folder: AbsoluteFolder  # in the pod
    read_only: bool = True


class KubernetesSite(Value):
    """Reaching nodes by Kubernetes, each as a pod of one Job."""

    namespace: SafeWord = "default"
    context: SafeWord | None = None  # of the user's kubeconfig
    image: SafeWord | None = None
    queue: SafeWord | None = None  # of Kueue
    service_account: SafeWord | None = None
    peer_seconds: int = Field(default=300, ge=1)  # how long pods that run wait for the others
    node_selector: dict[SafeWord, LabelValue] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    # The resource that is one device, such as nvidia.com/gpu; `none`: pods have the devices without one.
    devices: SafeWord | None = None
    # Further resources of each pod, such as rdma/hca.
    resources: dict[SafeWord, ResourceQuantity] = Field(default_factory=dict)
    shared_memory_bytes: int | None = Field(default=None, ge=1)
    # A volume that all pods and this machine share; without one the files are streamed through the pods' logs.
    claim: SafeWord | None = None
    claim_folder: AbsoluteFolder | None = None  # where this machine has it
    host_network: bool = False
    annotations: dict[SafeWord, str] = Field(default_factory=dict)  # of each pod
    volumes: tuple[PodVolume, ...] = ()  # of each pod
    priority_class: SafeWord | None = None
    scheduler: SafeWord | None = None
    pull_secrets: tuple[SafeWord, ...] = ()
    restricted: bool = False  # as the Pod Security Standard of that name wants it
    user: int | None = Field(default=None, ge=0)  # the number of the containers' user
    group: int | None = Field(default=None, ge=0)  # likewise

    @model_validator(mode="after")
    def _claim_has_a_folder(self) -> KubernetesSite:
        if (self.claim is None) != (self.claim_folder is None):
            raise ValueError("claim and claim_folder: found one of them, expected both or none")
        return self

    @model_validator(mode="after")
    def _volume_names_are_unique(self) -> KubernetesSite:
        if repeated := repeated_names([*POD_VOLUMES, *(volume.name for volume in self.volumes)]):
            raise ValueError(f"volumes: found {', '.join(repeated)}, expected names that no other volume of a pod has")
        return self

    @model_validator(mode="after")
    def _restricted_pods_may_start(self) -> KubernetesSite:
        """A namespace that enforces the standard would refuse the pods, and only an event would say it."""
        rdma_resources = [name for name in self.resources if name.startswith(RDMA)]
        host_folders = [volume.name for volume in self.volumes if "hostPath" in volume.source]
        host_network = ["host_network"] if self.host_network else []
        if self.restricted and (forbidden := [*rdma_resources, *host_folders, *host_network]):
            raise ValueError(f"restricted: found it with {', '.join(forbidden)}, which the restricted standard forbids")
        if self.restricted and self.user == 0:
            raise ValueError("restricted: found it with user 0, expected a user that is not root")
        return self


class NodePowerSite(Value):
    """A command that prints the power of whole nodes in watts; see docs/node-power.md. No record of a run has it."""

    # A line for `sh`, on the platform's machine. {host} is a node's name: the command then runs for each node.
    command: Annotated[str, AfterValidator(_refuse_secret)] = Field(min_length=1)
    source: str = Field(pattern=r"^[A-Za-z0-9][ -~]{0,59}$")  # what it reads, for results
    seconds: float = Field(default=2.0, ge=0.1, le=60)  # from one start of the command to the next

    @property
    def is_per_host(self) -> bool:
        return "{host}" in self.command


class NodePowerPlan(Value):
    """What a run records of how it reads the power of its nodes."""

    # Other values than the defaults of `protocol` and `verify` are of earlier runs, which read BMCs without a command.
    protocol: Literal["command", "redfish", "ipmi", "local"] = "command"
    seconds: float  # from one reading to the next
    verify: bool = True  # whether the certificate of a BMC was checked
    # The site's command that reads the power; no file of a run has it.
    reader: NodePowerSite | None = Field(default=None, exclude=True, repr=False)


class Site(Document):
    """How a site's machines are reached."""

    KIND: ClassVar[str] = "site"

    launcher: SafeWord | None = None  # the default of its runs
    shared: AbsoluteFolder | None = None  # a folder that every node sees at the same path
    interface: Interface | None = None  # of the network between nodes
    # The first and the last port for the rendezvous; below the kernel's own range.
    ports: tuple[Port, Port] = (23000, 31999)
    python: SafeWord | None = None  # the interpreter on the nodes
    modules: tuple[SafeWord, ...] = ()  # environment modules to load
    environment: PublicVariables = Field(default_factory=dict)  # variables of every rank
    hosts: SafeWord | None = None  # a hosts file, for ssh
    ssh: SshSite = Field(default_factory=SshSite)
    slurm: SlurmSite = Field(default_factory=SlurmSite)
    kubernetes: KubernetesSite = Field(default_factory=KubernetesSite)
    node_power: NodePowerSite | None = None  # a command that prints the power of whole nodes
    # What a launcher of the site's own reads, by the keys that it names.
    own: dict[SafeWord, LauncherValue] = Field(default_factory=dict)
    bind: Literal["numa", "none"] = "numa"  # whether a rank has only the cores of its device's NUMA domain

    @model_validator(mode="after")
    def _own_keys_hold_no_secret(self) -> Site:
        _refuse_secrets({key: str(value) for key, value in self.own.items()})
        return self

    @model_validator(mode="after")
    def _ports_are_ordered(self) -> Site:
        if self.ports[0] > self.ports[1]:
            raise ValueError(f"ports: found {list(self.ports)}, expected the first port before the last")
        return self


class LaunchPlan(Value):
    """How the nodes are reached."""

    launcher: str
    code: str | None = None  # the path of a site's own launcher; None: one of Levelfield or of a package
    site: Site
    hosts: tuple[Host, ...] = ()  # for ssh, one for each node, the first node first; else empty
    samples: tuple[NodeCommand, ...] = ()  # `sampling_commands` of NodeCommands, repeated during the run
    facts: dict[str, NodeCommand] = Field(default_factory=dict)  # its `fact_commands` by name, which run once
    pci_vendor: str | None = None  # the maker's number on the PCI bus, by which a node finds the devices' NUMA domains

    def interface_of(self, host: Host) -> str | None:
        """Return the interface that the host or the site names for the collectives; None where neither does."""
        return host.interface or self.site.interface

    def loopback_problem(self, host: Host) -> str | None:
        """Return why no other node can reach a host, where its address or interface already shows it."""
        if self.interface_of(host) == "lo":
            return "interface: found lo, expected one of the network between the nodes"
        if host.peer_address.partition(".")[0] == "localhost" or _is_loopback(host.peer_address):
            key = "name" if host.address is None else "address"
            return f"{key}: found {host.peer_address}, expected an `address` at which the other nodes reach the host"
        return None


def rendezvous_port(run_id: str, ports: tuple[int, int]) -> int:
    """Return the port of a run's rendezvous on the first node: one within `ports`, which follows from the run id."""
    first, last = ports
    return first + int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:8], "big") % (last - first + 1)
