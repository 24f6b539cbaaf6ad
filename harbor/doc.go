// Package harbor is the egress sidecar of Harbor's Docker environment: it keeps the network namespace that it is in, which
// the containers of a task share, under one policy at a time, and changes that as Harbor asks.
//
// Harbor starts it by its own compose file, with the policy to begin with in the environment, waits for a ready file, and
// switches by running "network-policy" inside of the container (environments/docker of the Python package harbor 0.25.0:
// docker-compose-egress-control.yaml, docker.py). The rules are those of package gate and the proxy is package proxy, in
// this process. No guard stands behind the gate here, so it is the gate that tells the sidecar's own connections from those
// of the workload, see [sluice/dockernet/gate.Shared].
package harbor
