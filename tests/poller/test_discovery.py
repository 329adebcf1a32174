"""Targets that come and go: names answered by a DNS server of this test's own, and file_sd files that appear, change and break."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator

import dns.rcode
import pytest
from name_server import NameServer

from kvwatch.config.settings import DiscoverySettings, TargetSettings
from kvwatch.errors import ConfigError
from kvwatch.poller.discovery import Discovery, addresses_as_targets, read_file_sd
from kvwatch.poller.resolver import dns_lookup


@pytest.fixture
def name_server() -> Iterator[NameServer]:
    server = NameServer()
    yield server
    server.close()


PODS = "vllm-pods.serving.svc.cluster.local."
URL = f"dns+http://{PODS}:8000/metrics"


def following(server: NameServer, *targets: TargetSettings) -> Discovery:
    return Discovery(targets, DiscoverySettings(dns_server=server.address))


def urls(discovery: Discovery) -> list[str]:
    return [target.url for target in discovery.discover().targets]


def test_pods_behind_a_headless_service_come_and_go_without_a_restart(name_server):
    discovery = following(name_server, TargetSettings(url=URL))
    seen = []
    for addresses in (["10.1.0.9", "10.1.0.10"], ["10.1.0.10", "10.1.0.11"], []):
        name_server.records[PODS, "A"] = addresses
        seen.append(urls(discovery))
    assert seen == [
        ["http://10.1.0.9:8000/metrics", "http://10.1.0.10:8000/metrics"],
        ["http://10.1.0.10:8000/metrics", "http://10.1.0.11:8000/metrics"],
        [],
    ]
    assert discovery.discover().errors == ()


def test_a_fleet_too_large_for_one_datagram_is_asked_for_over_tcp(name_server):
    fleet = [f"10.1.{number // 250}.{number % 250 + 1}" for number in range(500)]
    name_server.records[PODS, "A"] = fleet[::-1]
    assert urls(following(name_server, TargetSettings(url=URL))) == [f"http://{address}:8000/metrics" for address in fleet]


def test_a_server_that_never_answers_is_told_in_the_same_words_each_time(name_server, monkeypatch):
    """The daemon logs a fault when it is new, and dnspython's words hold the time it took."""
    monkeypatch.setattr("kvwatch.poller.resolver.LOOKUP_SECONDS", 0.05)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        settings = DiscoverySettings(dns_server=f"127.0.0.1:{silent.getsockname()[1]}")
        discovery = Discovery([TargetSettings(url=URL)], settings)
        faults = [discovery.discover().errors for _ in range(2)]
    assert faults == [(f"{URL}: no answer within 0.05 s; keeping the 0 targets it last named",)] * 2


def test_ipv6_is_used_where_the_name_has_no_ipv4(name_server):
    name_server.records[PODS, "AAAA"] = ["fd00::2", "fd00::1"]
    assert urls(following(name_server, TargetSettings(url=URL))) == ["http://[fd00::1]:8000/metrics", "http://[fd00::2]:8000/metrics"]


def test_a_dual_stack_pod_is_one_target(name_server):
    name_server.records[PODS, "A"] = ["10.1.0.9"]
    name_server.records[PODS, "AAAA"] = ["fd00::1"]
    assert urls(following(name_server, TargetSettings(url=URL))) == ["http://10.1.0.9:8000/metrics"]
    assert name_server.queries == [(PODS, "A")]


def test_what_the_operator_knows_goes_to_every_address_and_the_name_tells_them_apart(name_server):
    name_server.records[PODS, "A"] = ["10.1.0.9", "10.1.0.10"]
    discovery = following(name_server, TargetSettings(url=f"dns+https://{PODS}/custom", name="chat", max_num_seqs=16))
    assert [(target.name, target.url, target.max_num_seqs) for target in discovery.discover().targets] == [
        ("chat/10.1.0.9", "https://10.1.0.9/custom", 16),
        ("chat/10.1.0.10", "https://10.1.0.10/custom", 16),
    ]


def test_a_dns_outage_keeps_the_targets_and_is_reported(name_server):
    discovery = following(name_server, TargetSettings(url=URL))
    name_server.records[PODS, "A"] = ["10.1.0.9"]
    assert urls(discovery) == ["http://10.1.0.9:8000/metrics"]
    name_server.rcode = dns.rcode.SERVFAIL
    during = discovery.discover()
    assert [target.url for target in during.targets] == ["http://10.1.0.9:8000/metrics"]
    assert len(during.errors) == 1
    assert during.errors[0].startswith(URL)
    assert "SERVFAIL" in during.errors[0]
    name_server.rcode = dns.rcode.NOERROR
    name_server.records[PODS, "A"] = ["10.1.0.12"]
    after = discovery.discover()
    assert ([target.url for target in after.targets], after.errors) == (["http://10.1.0.12:8000/metrics"], ())


def test_a_name_that_does_not_exist_has_no_targets(name_server):
    discovery = following(name_server, TargetSettings(url=URL))
    name_server.records[PODS, "A"] = ["10.1.0.9"]
    assert len(urls(discovery)) == 1
    name_server.records.clear()
    assert urls(discovery) == []


@pytest.mark.parametrize(
    ("server", "fault"),
    [
        pytest.param(
            "kube-dns.kube-system:53", "must be an address and a port, such as 10.96.0.10:53", id="a name needs a resolver itself"
        ),
        pytest.param("10.96.0.10:dns", "Port could not be cast", id="port is no number"),
        pytest.param(":53", "is not host:port", id="no host"),
    ],
)
def test_a_dns_server_that_is_none_is_a_configuration_error(server, fault):
    with pytest.raises(ConfigError, match=r"discovery\.dns_server: ") as error:
        dns_lookup(server)
    assert fault in str(error.value)


def test_configured_targets_need_neither_dns_nor_files():
    fixed = TargetSettings(url="http://127.0.0.1:8000/metrics", name="here", max_num_batched_tokens=8192)
    assert Discovery([fixed], DiscoverySettings()).discover().targets == (fixed,)


def test_files_appear_change_and_leave(tmp_path):
    discovery = Discovery([], DiscoverySettings(files=[str(tmp_path / "*.json"), str(tmp_path / "*.yml")]))
    assert urls(discovery) == []
    json_file, yaml_file = tmp_path / "a.json", tmp_path / "b.yml"
    json_file.write_text(json.dumps([{"targets": ["10.1.0.1:8000", "10.1.0.2:8000"], "labels": {"zone": "a"}}]))
    assert urls(discovery) == ["http://10.1.0.1:8000/metrics", "http://10.1.0.2:8000/metrics"]
    yaml_file.write_text("- targets: ['10.1.0.3:8000']\n")
    json_file.write_text(json.dumps([{"targets": ["10.1.0.2:8000"]}]))
    assert urls(discovery) == ["http://10.1.0.2:8000/metrics", "http://10.1.0.3:8000/metrics"]
    json_file.unlink()
    assert urls(discovery) == ["http://10.1.0.3:8000/metrics"]
    yaml_file.write_text("[]")
    assert urls(discovery) == []


def test_a_half_written_file_keeps_its_last_targets_until_it_is_whole_or_gone(tmp_path):
    file = tmp_path / "vllm.json"
    discovery = Discovery([], DiscoverySettings(files=[str(file)]))
    assert discovery.discover().errors == (f"{file}: no such file",)
    file.write_text('[{"targets": ["10.1.0.1:8000"]}]')
    assert discovery.discover().errors == ()
    file.write_text('[{"targets": ["10.1.0.2:80')
    broken = discovery.discover()
    assert [target.url for target in broken.targets] == ["http://10.1.0.1:8000/metrics"]
    assert broken.errors[0].startswith(f"{file}: not JSON: ")
    assert broken.errors[0].endswith("keeping the 1 targets it last named")
    file.unlink()
    assert urls(discovery) == []
    file.write_text("nonsense")
    assert urls(discovery) == [], "targets of a file that was gone do not come back"


def test_the_labels_of_a_file_stay_with_the_target_but_those_of_prometheus_and_our_own(tmp_path):
    file = tmp_path / "vllm.yaml"
    file.write_text(
        "- targets: ['10.1.0.1:8000', '10.1.0.2:8000']\n"
        "  labels: {namespace: prod, pod: vllm-0, node: gpu-1, __meta_x: y, instance: a, target: b, state: c, model_name: d}\n"
    )
    assert [target.labels for target in read_file_sd(file)] == [{"namespace": "prod", "pod": "vllm-0", "node": "gpu-1"}] * 2


def test_every_address_of_a_name_has_the_labels_of_the_name():
    named = TargetSettings(url="dns+http://vllm:8000/metrics", labels={"namespace": "prod"})
    assert [target.labels for target in addresses_as_targets(named, lambda _name: ["10.1.0.1", "10.1.0.2"])] == [{"namespace": "prod"}] * 2


def test_scheme_path_and_instance_labels_are_honoured(tmp_path):
    file = tmp_path / "vllm.yaml"
    file.write_text(
        "- targets: ['gpu-1.example:8443']\n"
        "  labels: {__scheme__: https, __metrics_path__: /inner/metrics, instance: gpu-1}\n"
        "- targets: ['[fd00::1]:8000', '10.1.0.2:8000']\n"
        "  labels: {instance: shared}\n"
    )
    assert [(target.name, target.url) for target in read_file_sd(file)] == [
        ("gpu-1", "https://gpu-1.example:8443/inner/metrics"),
        ("http://[fd00::1]:8000/metrics", "http://[fd00::1]:8000/metrics"),
        ("http://10.1.0.2:8000/metrics", "http://10.1.0.2:8000/metrics"),
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param("{}", "Input should be a valid list", id="not a list"),
        pytest.param("- 7", "0: Input should be a valid dictionary", id="group is no mapping"),
        pytest.param("- targets: [8000]", "0.targets.0: Input should be a valid string", id="target is no string"),
        pytest.param("- targets: []\n- target: ['a:1']", "1.targets: Field required", id="targets missing"),
        pytest.param("- {targets: [], label: {}}", "0.label: Extra inputs are not permitted", id="unknown key"),
        pytest.param("- targets: ['http://a:8000/metrics']", "is not host:port: the scheme goes into __scheme__", id="URL as target"),
        pytest.param("- {targets: ['a:1'], labels: {__scheme__: ftp}}", "'ftp' is neither http nor https", id="scheme"),
        pytest.param("- targets: ['a:99999']", "Port out of range", id="port"),
        pytest.param("- targets: ['me:secret@a:1']", "credentials do not belong in a URL", id="credentials"),
        pytest.param("- targets: ['a:1'", "not YAML: ", id="cut"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(tmp_path, text, fault):
    file = tmp_path / "vllm.yml"
    file.write_text(text)
    with pytest.raises(ValueError, match=re.escape(fault)):
        read_file_sd(file)
    discovered = Discovery([], DiscoverySettings(files=[str(file)])).discover()
    assert discovered.targets == ()
    assert fault in discovered.errors[0]
    assert "\n" not in discovered.errors[0]
    assert "secret" not in discovered.errors[0]


def test_a_file_that_is_not_text_is_a_fault_and_no_crash(tmp_path):
    (tmp_path / "vllm.yml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.yml").mkdir()
    discovered = Discovery([], DiscoverySettings(files=[str(tmp_path / "*.yml")])).discover()
    assert (discovered.targets, len(discovered.errors)) == ((), 2)


def test_it_is_told_which_targets_were_named_together(tmp_path, name_server):
    name_server.records[PODS, "A"] = ["10.1.0.9", "10.1.0.10"]
    file = tmp_path / "vllm.yml"
    file.write_text("- targets: ['10.1.0.1:8000']\n  labels: {instance: chat}\n- targets: ['10.1.0.9:8000']\n  labels: {instance: mail}\n")
    configured = [TargetSettings(url="http://10.1.0.3:8000/metrics", name="code"), TargetSettings(url=URL, name="pods")]
    found = Discovery(configured, DiscoverySettings(dns_server=name_server.address, files=[str(file)])).discover()
    assert found.sources == {"code": "", "pods/10.1.0.9:8000": URL, "pods/10.1.0.10:8000": URL, "chat": str(file)}  # mail is a pod's URL


def test_one_url_is_watched_once_and_one_name_means_one_target(tmp_path):
    file = tmp_path / "vllm.yml"
    file.write_text("- targets: ['10.1.0.1:8000']\n- targets: ['10.1.0.2:8000']\n  labels: {instance: chat}\n")
    fixed = TargetSettings(url="http://10.1.0.1:8000/metrics", name="chat")
    discovered = Discovery([fixed], DiscoverySettings(files=[str(file), str(tmp_path / "v*")])).discover()
    assert discovered.targets == (fixed,)
    assert discovered.errors == ("http://10.1.0.2:8000/metrics: the name 'chat' is taken by another target; not watched",)
