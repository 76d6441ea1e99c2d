"""The Dockerfile and the code name the same user, paths, ports, programs and versions."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Final

from services.broker.config import BrokerConfig
from services.ha.config import HaConfig
from services.names.config import NamesConfig
from services.reput.config import ReputConfig
from shared.runtime.config import load
from tests.support.dockerfile import DOCKERFILE, ROOT, Stage, instructions, pairs, stages

TEXT: Final = DOCKERFILE.read_text()
STAGES: Final = stages(TEXT)
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
UID: Final = "10001"


def of_run(name: str) -> list[str]:
    return STAGES["run"].texts(name)


def test_the_runtime_image_has_no_compiler() -> None:
    assert list(STAGES) == ["python", "build", "run", "build-analytics", "analytics"]
    assert {stage.base for stage in (STAGES["build"], STAGES["run"])} == {"python"}
    installed = " ".join(STAGES["python"].texts("RUN") + of_run("RUN"))
    assert not re.search(r"gcc|-dev|pip|setuptools|cython", installed, re.IGNORECASE)
    assert of_run("COPY") == ["--from=build /opt/tidemark /opt/tidemark"]


def test_any_base_will_do_and_the_default_is_the_debian_of_our_python() -> None:
    defaults = [step.text for step in instructions(TEXT) if step.name == "ARG"]
    assert defaults[0] == "BASE=debian:bookworm-slim"
    assert STAGES["python"].base == "${BASE}"
    assert PROJECT["requires-python"] == ">=3.11"


def test_the_user_is_a_number_and_owns_what_volumes_take_their_owner_from() -> None:
    assert of_run("USER") == [f"{UID}:{UID}"]
    made = " ".join(of_run("RUN"))
    assert f"--gid {UID}" in made
    assert f"--uid {UID}" in made
    owned = re.search(rf"install -d -o {UID} -g {UID} -m 0750 ([^&]*)", made)
    assert owned is not None
    assert owned[1].split() == ["/var/lib/tidemark", "/var/lib/tidemark-group", "/run/tidemark"]
    # Everything before USER belongs to root: a running service cannot change its own code.
    order = [step.name for step in STAGES["run"].steps]
    assert order.index("USER") > max(index for index, name in enumerate(order) if name == "COPY")


def test_the_programs_that_a_container_names_are_those_of_the_package_and_on_the_path() -> None:
    programs = {"tidemark", "tidemark-broker", "tidemark-reput", "tidemark-ha", "tidemark-names"}
    assert set(PROJECT["scripts"]) == {*programs, "tidemark-analytics"}
    # It needs Spark: it is in the other image alone.
    assert "rm /opt/tidemark/bin/tidemark-analytics" in " ".join(STAGES["build"].texts("RUN"))
    assert pairs(of_run("ENV")[0])["PATH"].split(":")[0] == "/opt/tidemark/bin"
    assert of_run("CMD") == ['["tidemark", "--help"]']
    assert not of_run("ENTRYPOINT")


def test_nothing_in_the_image_wins_over_a_configuration_file_that_is_mounted() -> None:
    assert not [name for text in of_run("ENV") for name in pairs(text) if "TIDEMARK" in name]


def test_a_read_only_root_needs_no_writing_of_bytecode() -> None:
    assert pairs(of_run("ENV")[0])["PYTHONDONTWRITEBYTECODE"] == "1"
    assert "--invalidation-mode unchecked-hash" in " ".join(STAGES["build"].texts("RUN"))


def test_the_ports_are_those_of_the_services() -> None:
    cluster = {
        "node": "n0",
        "nodes": ["n0=a:8084", "n1=b:8084"],
        "api": ["n0=http://a", "n1=http://b"],
        "admin": ["n0=http://a", "n1=http://b"],
        "secret_file": "/secret",
        "lease_dir": "/lease",
    }
    grouped = {"cluster": cluster, "store": {"visible_after": "confirmed"}}
    ha = load(HaConfig, None, "", grouped)
    broker, reput, names = BrokerConfig(), ReputConfig(), NamesConfig()
    assert of_run("EXPOSE") == [
        f"{broker.port} {broker.admin_port} {reput.admin_port} {ha.admin_port} 8084 "
        f"{names.port} {names.admin_port}"
    ]


def test_the_labels_have_the_version_of_the_package() -> None:
    labels = pairs(of_run("LABEL")[0])
    prefix = "org.opencontainers.image."
    assert labels[prefix + "title"] == "tidemark"
    assert labels[prefix + "description"] == PROJECT["description"]
    assert labels[prefix + "version"] == "${VERSION}"
    assert labels[prefix + "revision"] == "${REVISION}"
    assert f"VERSION={PROJECT['version']}" in of_run("ARG")


def test_it_ends_by_the_signal_that_the_services_handle_and_judges_no_health() -> None:
    assert of_run("STOPSIGNAL") == ["SIGTERM"]
    assert of_run("HEALTHCHECK") == ["NONE"]


def test_every_package_is_installed_by_its_hash_and_none_is_built() -> None:
    installs = [
        step
        for stage in STAGES.values()
        for text in stage.texts("RUN")
        for step in text.split("&&")
        if " install " in step and "pip" in step
    ]
    assert len(installs) == 5
    for step in installs:
        locked = "--require-hashes" in step and "--only-binary :all:" in step
        assert locked or step.split()[-1] == "wheels/*.whl", step  # our own, just made


def test_a_build_without_native_modules_fails() -> None:
    assert "raise SystemExit(native.WHY_PURE or 0)" in " ".join(STAGES["build"].texts("RUN"))


def copied(stage: Stage) -> list[str]:
    return [
        word.rstrip("/")
        for text in stage.texts("COPY")
        if not text.startswith("--from")
        for word in text.split()[:-1]
    ]


def test_copied_files_exist_and_are_sent_to_the_builder() -> None:
    rules = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert rules[0] == "*", "files that are not listed are left out"
    kept = {rule[1:] for rule in rules if rule.startswith("!")}
    sources = {path for stage in STAGES.values() for path in copied(stage)}
    assert sources == kept
    for path in sources:
        assert (ROOT / path).exists(), path


def test_no_compiled_file_of_this_machine_reaches_the_image() -> None:
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    for name in ("checksum.cpython-311-x86_64-linux-gnu.so", "__pycache__", "tidemark.egg-info"):
        assert any(fnmatch.fnmatch(f"x/{name}", rule) for rule in rules if rule.startswith("**"))


ANALYTICS: Final = STAGES["analytics"]


def test_the_image_with_spark_is_the_other_one_and_java() -> None:
    assert ANALYTICS.base == "run"
    assert STAGES["build-analytics"].base == "build"
    installed = " ".join(ANALYTICS.texts("RUN"))
    assert "openjdk-17-jre-headless" in installed
    assert not re.search(r"gcc|-dev|pip|setuptools|cython|-jdk-", installed, re.IGNORECASE)
    [steps] = STAGES["build-analytics"].texts("RUN")
    split = [step for step in steps.split("&&") if "requirements-analytics.lock" in step]
    assert len(split) == 2, "one package is built, the others come as wheels"
    # An argument ends with its stage: without this the second installation would ask PyPI.
    assert STAGES["build-analytics"].texts("ARG") == STAGES["build"].texts("ARG")
    [built] = [step for step in steps.split("&&") if "-r spark.lock" in step]
    assert "--require-hashes" in built
    assert ANALYTICS.texts("USER")[-1] == f"{UID}:{UID}"
    order = [step.name for step in ANALYTICS.steps]
    assert order[::-1].index("USER") < order[::-1].index("COPY")


def test_drivers_and_executors_have_the_same_python_and_log_it_before_spark_starts() -> None:
    [environment] = map(pairs, ANALYTICS.texts("ENV"))
    assert environment["PYSPARK_PYTHON"] == "/opt/tidemark/bin/python"
    assert environment["PYSPARK_DRIVER_PYTHON"] == environment["PYSPARK_PYTHON"]
    assert environment["SPARK_HOME"].startswith("/opt/tidemark/lib/python3.11/")
    assert not [name for name in environment if "TIDEMARK" in name]


def test_a_command_runs_through_the_entry_and_an_executor_gets_all_variables(
    tmp_path: Path,
) -> None:
    [entry] = ANALYTICS.texts("ENTRYPOINT")
    assert entry == '["/usr/local/bin/spark-entry"]'
    script = ROOT / "deploy/docker/spark-entry.sh"
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("java", "spark-submit"):
        path = programs / name
        path.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n')
        path.chmod(0o755)
    variables = {
        "SPARK_HOME": "/spark",
        "SPARK_EXECUTOR_MEMORY": "4g",
        "SPARK_EXECUTOR_CORES": "4",
        "SPARK_EXECUTOR_ID": "7",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
        "SPARK_EXECUTOR_POD_NAME": "exec-7",
        "SPARK_DRIVER_URL": "spark://driver:7078",
        "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        # More than ten: in the order of numbers, not of letters; blanks stay in their option.
        **{f"SPARK_JAVA_OPT_{number}": f"-Dn={number} x" for number in range(12)},
    }
    environment = {"PATH": f"{programs}:/usr/bin:/bin", **variables}

    def said(*arguments: str) -> list[str]:
        done = subprocess.run(
            ["/bin/sh", str(script), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
        return done.stdout.splitlines()

    executor = said("executor")
    assert executor[0].endswith("/java")
    assert executor[1:15] == [*(f"-Dn={number} x" for number in range(12)), "-Xms4g", "-Xmx4g"]
    asked = dict(zip(executor[18::2], executor[19::2], strict=True))
    assert executor[15] == "-cp"
    assert executor[16].endswith(":/spark/jars/*")
    assert executor[17].endswith(".KubernetesExecutorBackend")
    assert asked["--driver-url"] == "spark://driver:7078"
    assert (asked["--podName"], asked["--executor-id"]) == ("exec-7", "7")
    driver = said("driver", "--class", "x")
    assert driver[0].endswith("/spark-submit")
    assert driver[-2:] == ["--class", "x"]
    assert said("echo", "a  b") == ["a  b"]


def test_ports_of_the_image_with_spark_are_those_of_the_manifests() -> None:
    settings = (ROOT / "deploy/k8s/components/analytics/spark.properties").read_text()
    found = dict(line.split("=", 1) for line in settings.splitlines() if "=" in line)
    [ports] = ANALYTICS.texts("EXPOSE")
    assert ports.split()[1:3] == [found["spark.driver.port"], found["spark.blockManager.port"]]
