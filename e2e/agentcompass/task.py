"""Drives one task through AgentCompass's own Docker provider.

Reads one JSON request a line from standard input and answers each with one JSON line. The provider starts the proxy,
waits for it, writes its policy file and removes everything at the end: nothing of it is replaced here.

    {"do": "open", "id": ..., "image": ..., "proxy_image": ..., "network": ..., "policies": {"baseline": ..., ...}}
    {"do": "phase", "phase": "run"}
    {"do": "exec", "argv": [...], "timeout": seconds, "detach": false}
    {"do": "close"}

The end of the input closes the task too.
"""
import asyncio
import json
import logging
import sys
import time
from types import SimpleNamespace

from agentcompass.environments.docker import DockerEnvironment
from agentcompass.runtime.models.plan import EnvironmentSpec, ExecutionPlan
from agentcompass.runtime.network import NetworkPolicy


class Task:
    def __init__(self):
        self.provider = DockerEnvironment()
        self.session = None
        self.policies = {}

    async def open(self, request):
        self.policies = {phase: NetworkPolicy.from_value(request["policies"].get(phase, "public"))
                         for phase in ("baseline", "run", "evaluation")}
        baseline, run, evaluation = self.policies.values()
        params = {"allowlist_proxy_image": request["proxy_image"], "allowlist_proxy_start_timeout": 20}
        if request.get("network"):
            params["network"] = request["network"]
        environment = EnvironmentSpec(id="docker", setup={"image": request["image"]}, params=params,
                                      baseline_network_policy=baseline, run_network_policy=run,
                                      evaluation_network_policy=evaluation)
        plan = ExecutionPlan(environment=environment, run_network_policy=run, evaluation_network_policy=evaluation,
                             evaluation_environment_mode="reuse", task_id=request["id"])
        benchmark = SimpleNamespace(id=request["id"])
        self.session = await self.provider.open(SimpleNamespace(benchmark=benchmark, environment=environment), plan)
        return {"container": self.session.container_id, "proxy": self.session.egress_proxy_container_id or "",
                "network": self.session.internal_network_name or ""}

    async def phase(self, request):
        started = time.time()
        await self.session.set_network_policy(self.policies[request["phase"]])
        returned = time.time()
        return {"seconds": returned - started, "returned": returned}

    async def exec(self, request):
        result = await self.session.exec(request["argv"], timeout=request["timeout"], detach=request.get("detach", False))
        return {"code": result.returncode, "stdout": result.stdout, "stderr": result.stderr,
                "timed_out": bool(result.timed_out)}

    async def close(self, request):
        session, self.session = self.session, None
        if session is None:
            return {}
        for tries_left in reversed(range(10)):
            try:
                await self.provider.close(
                    container_id=session.container_id, proxy_container_id=session.egress_proxy_container_id,
                    network_name=session.internal_network_name,
                    policy_dir=str(session.egress_policy_dir) if session.egress_policy_dir else None)
                break
            except RuntimeError as error:
                # Its containers run with --rm, and the engine's own removal of them may be quicker than "rm -f".
                if not tries_left or "already in progress" not in str(error):
                    raise
                await asyncio.sleep(0.2)
        return {}


async def main():
    logging.disable(logging.INFO)
    task = Task()
    steps = {"open": task.open, "phase": task.phase, "exec": task.exec, "close": task.close}
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            try:
                answer = await steps[request["do"]](request)
            except Exception as error:  # the provider's own words are what a script checks
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)
    finally:
        await task.close({})


asyncio.run(main())
