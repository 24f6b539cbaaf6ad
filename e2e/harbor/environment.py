"""Take a task through its phases by the Docker environment of the released Harbor, as its trials do.

argv[1] is JSON: package, dir (with environment/ in it), image, begin, steps. A policy is {"network_mode", "allowed_hosts"}; a step
is a policy to switch to, or {"run": command}. Each prints a line of JSON.
"""
import asyncio
import json
import os
import pathlib
import sys
import time
import typing

import typing_extensions

# Harbor asks for Python 3.12. Its Docker environment takes these from it, and nothing else.
if sys.version_info < (3, 12):
    typing.override = lambda method: method
    typing.TypedDict = typing_extensions.TypedDict

    def walk(self, top_down=True, on_error=None, follow_symlinks=False):
        for root, dirs, files in os.walk(self, topdown=top_down, onerror=on_error, followlinks=follow_symlinks):
            yield pathlib.Path(root), dirs, files

    pathlib.Path.walk = walk

task = json.loads(sys.argv[1])
sys.path.insert(0, str(pathlib.Path(task["package"]).parent))

from harbor.environments.docker.docker import DockerEnvironment  # noqa: E402
from harbor.models.task.config import EnvironmentConfig, NetworkPolicy  # noqa: E402
from harbor.models.trial.paths import TrialPaths  # noqa: E402


class Environment(DockerEnvironment):
    # The lab has no registry, so the image that this is asked of cannot be pulled.
    _egress_control_kernel_support = classmethod(lambda cls: True)


async def main():
    directory = pathlib.Path(task["dir"])
    policies = [NetworkPolicy(**s) for s in task["steps"] if "network_mode" in s]
    environment = Environment(
        environment_dir=directory / "environment", environment_name="lab", session_id=task["name"],
        trial_paths=TrialPaths(directory / "trial"), task_env_config=EnvironmentConfig(docker_image=task["image"]),
        network_policy=NetworkPolicy(**task["begin"]), phase_network_policies=policies,
    )
    try:
        await environment.start(force_build=False)
        print(json.dumps({"sidecar": environment._env_vars.egress_control_sidecar_image_name}), flush=True)
        for step in task["steps"]:
            began = time.monotonic()
            if "run" in step:
                result = await environment.exec(step["run"], timeout_sec=60)
                out = {"code": result.return_code, "stdout": result.stdout or ""}
            else:
                await environment.set_network_policy(NetworkPolicy(**step))
                out = {"code": 0}
            print(json.dumps({**out, "seconds": time.monotonic() - began}), flush=True)
    finally:
        await environment.stop(delete=True)


asyncio.run(main())
