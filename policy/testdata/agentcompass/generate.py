"""Writes targets.jsonl and policies.jsonl: what AgentCompass makes of the inputs below.

    pip download --no-deps --python-version 3.12 --only-binary=:all: agentcompass==1.0.1
    unzip agentcompass-1.0.1-py3-none-any.whl -d DIR
    python3.12 generate.py DIR/agentcompass/runtime/network.py

The golden files come from the released wheel of 1.0.1 under Python 3.12, which it asks for; Python 3.13 prints
IPv4-mapped addresses with dots. The file that is loaded needs nothing but the standard library.
"""

import importlib.util
import json
import pathlib
import random
import sys

spec = importlib.util.spec_from_file_location("network", sys.argv[1])
network = importlib.util.module_from_spec(spec)
sys.modules["network"] = network
spec.loader.exec_module(network)
here = pathlib.Path(__file__).parent

L63, L64 = "a" * 63, "a" * 64
NAME253 = ".".join(["a" * 49] * 5 + ["abc"])
TARGETS = [
    # names
    "api.example.com", "API.Example.COM", "ok.test.", "db", "a-b.test", "a--b.test", "r3---sn-x.test", "1e100.net", "123.test", "0.test",
    L63 + ".test", NAME253, NAME253 + ".", "*." + NAME253, "xn--bcher-kva.test", "*.example.com", "*.Example.com.", "*.com", "*.a", "x.internal", "*.local",
    "a.test:443", "A.test.:443", "*.a.test:8443", "db:1", "db:65535", NAME253 + ":65535",
    # addresses
    "203.0.113.10", "0.0.0.0", "255.255.255.255", "127.0.0.1", "1.2.3.4:443", "1.2.3.4:1",
    "2001:db8::1", "2001:DB8:0:0:0:0:0:1", "2001:0db8::0001", "::", "::1", "::1:80", "2001:db8::1:443", "1:0:0:2:0:0:0:3", "1:0:2:3:4:5:6:7",
    "1::3:4:5:6:7:8", "fe80::1", "::ffff:1.2.3.4", "::FFFF:102:304", "::ffff:0.0.0.0", "64:ff9b::1.2.3.4", "::1.2.3.4", "2002:102:304::", "[::1]", "[2001:DB8::1]",
    "[::1]:443", "[2001:db8:0::1]:8443", "[::ffff:1.2.3.4]:443",
    # networks
    "10.0.0.0/8", "0.0.0.0/0", "1.2.3.4/32", "10.0.0.0/8:443", "1.2.3.4/32:1", "2001:db8::/32", "2001:DB8:0::/32", "::/0", "::1/128", "fc00::/7",
    "::ffff:10.0.0.0/104", "::ffff:0:0/96",
    # objects
    {"host": "A.test", "port": 443}, {"host": "a.test"}, {"host": "*.a.test", "port": 1}, {"host": "10.0.0.0/8", "port": 443},
    {"host": "2001:db8::/32", "port": 443}, {"host": "2001:DB8::1", "port": 65535}, {"host": "1.2.3.4", "port": 53}, {"host": "::1:80", "port": 80},
    # refused by both
    "", " ", ".", "*", "*.", "*:443", "..", "https://ok.test", "https://ok.test:443/x", "ok.test/path", "u@ok.test", "ok.test?x", "ok.test#", "a b.test", "a\tb",
    "10.0.0.5/8", "2001:db8::1/32", "10.0.0.5/8:443", "10.0.0.0/33", "10.0.0.0/-1", "::/129", "www*.com", "a.*.b.test", "*a.test", "a.test*", "**.a.test", "*.*.test",
    "ok.test:0", "ok.test:65536", "ok.test:-1", "ok.test:+443", "ok.test:443abc", "ok.test: 443", "ok.test:0x1bb", "ok.test:4.43e2", "ok.test:", ":443",
    "ok.test:99999999999", "[::1]:65536", "[::1]:0", "[::1]443", "[::1", "[::1]:", "[2001:db8::]/32:443", "a..b", "-a.test", "a-.test", "_x.test", ".a.test",
    L64 + ".test", "a" * 10 + "." + NAME253, "ok.test\x00", "\u200bok.test", "\ufeffok.test", "\u0430pple.test", "\uff45xample.test", "b\u00fccher.test", "a\uff0etest",
    ",", "a.test,b.test", "a%20b", "1:2:3", "ok.test:443:80", "[]", "[]:443", "[::1]]", "[[::1]]",
    {"port": 443}, {"host": "ok.test:443"}, {"host": "[::1]", "port": 443}, {"host": "", "port": 443}, {"host": "a.test", "port": 0}, {"host": "a.test", "port": 65536},
    {"host": "a.test", "port": "443"}, {"host": "a.test", "port": True}, {"host": "a.test", "port": 443.5}, {"host": "a.test", "prot": 443}, {"host": None}, {}, True, None, [],
    # refused by the rules of this project alone
    " ok.test", "ok.test ", "ok.test\r\n", "ok.test\u00a0", "evil.test..", "localhost", "a.localhost", "*.localhost", "127.1", "1.2.3.4.5", "0x7f.1", "2130706433", "01.2.3.4", "256.1.1.1",
    "1.2.3.4.", "*.1.2.3.4", "10.0.0.0/255.0.0.0", "10.0.0.0/0.255.255.255", "10.0.0.0/08", "fe80::1%eth0", "[fe80::1%1]:443", "ok.test:0443", "[::1]:0443",
    "2001:db8:0:0:0:0:0:1:443", "2001:db8::/32:443", "[2001:db8::/32]:443", "[2001:db8::/32]", "[example.com]:443", "[127.0.0.1]:80", "[ok.test]",
    "xn--a.test", "xn--zz.test", "\u212a.test", {"host": "a.test", "port": None}, {"host": " a.test"}, {"host": 1}, 5,
]


def attempt(make):
    try:
        return make()
    except Exception:  # whatever it raises, it refuses
        return {"refused": True}


def target(value):
    t = network.NetworkPolicyTarget.from_value(value)
    return {
        "dump": t.model_dump(),
        "kind": network.classify_allowed_host(t.host).value,
        "notice": network._format_notice_target(t if t.port is not None else t.host),
    }


def policy(value):
    p = network.NetworkPolicy.from_value(value)
    return {"dump": json.dumps(p.model_dump(), separators=(",", ":")), "notice": network.render_network_restriction_notice(p) or ""}


rng = random.Random(1)


def random_target():
    host = rng.choice([
        lambda: "%s.%s.test" % (rng.choice("abcXYZ"), rng.choice("abcXYZ")),
        lambda: "*.%s.test" % rng.choice("abc"),
        lambda: "10.%d.0.%d" % (rng.randrange(3), rng.randrange(12)),
        lambda: "10.%d.0.0/16" % rng.randrange(20),
        lambda: "2001:db8::%x" % rng.randrange(40),
        lambda: "2001:DB8:%x::/48" % rng.randrange(40),
    ])()
    port = rng.choice([None, None, 22, 80, 443, 8080])
    if port is None:
        return rng.choice([host, {"host": host}])
    return {"host": host, "port": port}


POLICIES = ["public", "no-network", {"network_mode": "public"}, {"network_mode": "no-network", "allowed_hosts": [], "denied_hosts": []}]
for mode, field in [("allowlist", "allowed_hosts"), ("denylist", "denied_hosts")]:
    POLICIES += [{"network_mode": mode, field: targets} for targets in [
        ["pypi.org", "registry.npmjs.org:443"],
        ["example.com:443"],
        ["ok.test:443", "OK.test.", "ok.test:80", "ok.test"],
        ["1.2.3.4/32", "1.2.3.4", "::ffff:1.2.3.4"],
        ["b.test", "a.test", "*.a.test", "a-b.test", "10.0.0.0/8", "2001:db8::1", "[2001:db8::1]:443", {"host": "2001:db8::/32", "port": 443}],
        ["ok.test:%d" % n for n in [1000, 99, 443, 8, 80]],
    ]]
    POLICIES += [{"network_mode": mode, field: [random_target() for _ in range(40)]} for _ in range(8)]

for name, inputs, result in [("targets", TARGETS, target), ("policies", POLICIES, policy)]:
    with open(here / f"{name}.jsonl", "w", encoding="utf-8") as out:
        for value in inputs:
            out.write(json.dumps({"input": value, **attempt(lambda: result(value))}) + "\n")
