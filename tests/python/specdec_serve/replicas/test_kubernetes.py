"""The manifests in examples/kubernetes: YAML with the fields that their kinds require.

They are applied to no cluster here.
"""

from pathlib import Path
from typing import Any

import yaml

from specdec_native.options.engine_options import OPTIONS
from specdec_serve.http.server_options import ServerOptions

FOLDER = Path(__file__).parents[4] / "examples/kubernetes"


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def check_containers(pod: dict[str, Any]) -> None:
    assert pod["containers"]
    for container in pod["containers"]:
        assert container["name"] and container["image"]
        assert container["resources"]["requests"] == container["resources"]["limits"]


def test_rayservice() -> None:
    (service,) = documents("rayservice.yaml")
    assert (service["apiVersion"], service["kind"]) == ("ray.io/v1", "RayService")
    cluster = service["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        assert "rayStartParams" in group
        check_containers(group["template"]["spec"])
    workers = cluster["workerGroupSpecs"][0]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]

    (app,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    module, _, builder = app["import_path"].partition(":")
    source = FOLDER.parents[1] / "python" / (module.replace(".", "/") + ".py")
    assert f"def {builder}(" in source.read_text()
    arguments = app["args"]
    assert set(arguments["engine_options"]) <= set(OPTIONS)
    assert set(arguments["server_options"]) <= set(ServerOptions.__dataclass_fields__)
    scale = arguments["autoscaling_config"]
    assert scale["max_replicas"] == workers["maxReplicas"]
    cpus = int(workers["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    assert cpus >= arguments["engine_options"]["num_threads"]


def test_leaderworkerset() -> None:
    groups, service = documents("leaderworkerset.yaml")
    assert groups["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    assert groups["kind"] == "LeaderWorkerSet"
    template = groups["spec"]["leaderWorkerTemplate"]
    assert template["size"] >= 1
    assert template["restartPolicy"] == "RecreateGroupOnPodRestart"
    worker = template["workerTemplate"]
    check_containers(worker["spec"])
    (container,) = worker["spec"]["containers"]
    assert service["spec"]["selector"].items() <= worker["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
