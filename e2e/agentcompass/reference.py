"""Answers what AgentCompass's own functions return: a JSON request a line, a JSON answer a line.

    {"do": "notice", "policy": ..., "input": {"prompt": ..., "messages": ...}, "encoded": false}
    {"do": "analyze", "tool_calls": [[...], ...]}
    {"do": "settings", "provider": "daytona", "policy": ..., "dynamic": true}
    {"do": "accepts", "provider": "docker", "policy": ...}
"""
import asyncio
import json
import sys
from copy import deepcopy
from types import SimpleNamespace

from agentcompass.runtime.network import (NetworkPolicy, render_network_restriction_notice,
                                          with_network_restriction_notice)
from agentcompass.runtime.models.task import PreparedTask, TaskInput, TaskOutput


def plain(value):
    """The JSON form of messages, of which some may be objects of AgentCompass's own."""
    if isinstance(value, list):
        return [item if isinstance(item, (dict, str)) else {"role": item.role, "content": item.content} for item in value]
    return value


def notice(request):
    given = TaskInput(prompt=request["input"].get("prompt", ""), messages=request["input"].get("messages") or [])
    original = deepcopy(given)
    prepared = PreparedTask(task_id="t", category="c", ground_truth=None, input=given, output=TaskOutput())
    text = render_network_restriction_notice(NetworkPolicy.from_value(request["policy"]))
    copied, surfaces = prepared, ()
    if text is not None:
        copied, surfaces = with_network_restriction_notice(prepared, text, json_encoded_prompt=request["encoded"])
    assert given == original, "the input that the task is judged by was changed"
    return {"prompt": plain(copied.input.prompt), "messages": plain(copied.input.messages), "surfaces": list(surfaces)}


def analyze(request):
    from agentcompass.analyzers.basic.network_op_analyzer import NetworkOperationAnalyzer
    steps = [SimpleNamespace(step_id=i + 1, assistant_content=None if calls is None else SimpleNamespace(tool_calls=calls))
             for i, calls in enumerate(request["tool_calls"])]
    analyzer = NetworkOperationAnalyzer.__new__(NetworkOperationAnalyzer)
    result = asyncio.run(analyzer.analysis(SimpleNamespace(task_id="t"), None,
                                           SimpleNamespace(trajectory=SimpleNamespace(steps=steps)), None, None))
    return {"details": result.details, "score": result.score}


def settings(request):
    from agentcompass.environments import daytona, modal
    policy = NetworkPolicy.from_value(request["policy"])
    if request["provider"] == "daytona":
        return {"create": daytona.DaytonaEnvironment._network_create_kwargs(policy)}
    return {"create": modal._modal_network_kwargs(policy, dynamic=request["dynamic"]),
            "update": modal._modal_dynamic_network_kwargs(policy)}


def accepts(request):
    from agentcompass.environments import daytona, docker, host_process, modal
    provider = {"daytona": daytona.DaytonaEnvironment, "docker": docker.DockerEnvironment,
                "host_process": host_process.HostProcessEnvironment, "modal": modal.ModalEnvironment}[request["provider"]]
    try:
        provider.__new__(provider).resolve_network_policy(NetworkPolicy.from_value(request["policy"]))
    except ValueError as error:
        return {"accepted": False, "error": str(error)}
    return {"accepted": True}


for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({"notice": notice, "analyze": analyze, "settings": settings,
                      "accepts": accepts}[request["do"]](request)), flush=True)
