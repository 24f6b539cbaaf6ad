package images

import (
	docker "github.com/moby/docker-image-spec/specs-go/v1"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// SluiceTag is the name under which the controller's image is loaded.
const SluiceTag = "sluice:dev"

// Sluice is the controller's image: its static binary and the sidecar's, from which it makes the sidecar's image.
//
// It looks after the host, so it needs the host's network and processes, the engine's socket and network namespaces, and
// a directory that has the same path outside:
//
//	modprobe br_netfilter
//	docker run --detach --name sluice --restart always --network host --pid host --cap-add NET_ADMIN --cap-add SYS_ADMIN \
//		--cap-add SYS_PTRACE --cap-add IPC_LOCK --security-opt apparmor=unconfined \
//		--volume /var/run/docker.sock:/var/run/docker.sock --volume /var/run/docker:/var/run/docker:rslave \
//		--volume /run/sluice:/run/sluice --volume /var/lib/docker/containers:/var/lib/docker/containers:ro IMAGE
//
// The mount of /var/lib/docker/containers lets it see where the engine forwards DNS to.
func Sluice(controller, proxy []byte) (Image, error) {
	const path = "/usr/local/bin/sluice"
	layer, err := NewLayer(
		File{Path: path, Mode: 0o755, Body: controller},
		File{Path: "/usr/local/bin/sluice-proxy", Mode: 0o755, Body: proxy},
	)
	if err != nil {
		return Image{}, err
	}
	return Image{
		Tag:    SluiceTag,
		Layers: []Layer{layer},
		Config: docker.DockerOCIImageConfig{ImageConfig: oci.ImageConfig{
			Env:        []string{"PATH=/usr/local/bin"},
			Entrypoint: []string{path},
			Cmd:        []string{"serve"},
			StopSignal: "SIGTERM",
			Labels: map[string]string{
				"org.opencontainers.image.title":       "sluice",
				"org.opencontainers.image.description": "Outbound policy for containers: the controller, and the proxy that it starts.",
			},
		}},
	}, nil
}
