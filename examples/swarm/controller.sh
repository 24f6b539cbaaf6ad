#!/bin/sh
# The controller of a node, in a container that has what a service of a swarm cannot have: the host's processes.
# Arguments are those of sluice.
docker rm --force sluice >/dev/null 2>&1 # one whose starter was killed; policies stay in force
exec docker run --rm --name sluice --network host --pid host \
  --cap-add NET_ADMIN --cap-add SYS_ADMIN --cap-add SYS_PTRACE --cap-add IPC_LOCK --security-opt apparmor=unconfined \
  --env SLUICE_SOCKET=/run/sluice/sluice.sock \
  --volume /var/run/docker.sock:/var/run/docker.sock \
  --volume /var/run/docker:/var/run/docker:rslave \
  --volume /var/lib/docker/containers:/var/lib/docker/containers:ro \
  --volume /run/sluice:/run/sluice \
  sluice:dev "$@"
