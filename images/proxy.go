package images

import (
	"time"

	docker "github.com/moby/docker-image-spec/specs-go/v1"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// ProxyTag is the name under which the sidecar's image is loaded.
const ProxyTag = "sluice-proxy:dev"

// TitleLabel says what an image is, and ProxyTitle that it is the sidecar.
const TitleLabel, ProxyTitle = "org.opencontainers.image.title", "sluice-proxy"

// SluiceProxy is the sidecar's image: the static binary, and "python" and "python3" as other names for it.
//
// A harness that brings a Python proxy starts its image as
//
//	docker run … IMAGE python /opt/agentcompass/docker_egress_proxy.py
//	docker exec … python -c "<probe>"
//
// and a person as "docker run … IMAGE serve …". All of them work: exec finds the link in PATH, so the binary sees
// argv[0] "python"; run has the binary as its entry point, which takes a first word "python" for the same name.
//
// The binary is readable and executable by everybody, since harnesses choose their own uid, and nothing has to be
// written: --read-only and --cap-drop ALL are fine. Only a control socket needs a place,
//
//	docker run --read-only --tmpfs /run/sluice-proxy:uid=65532,gid=65532,mode=0700 … IMAGE serve --control /run/sluice-proxy …
//
// The image's health check finds the proxy that runs in the container, whatever it was told. It comes rarely, since each
// one costs the engine a process in the container.
func SluiceProxy(binary []byte) (Image, error) {
	const path = "/usr/local/bin/sluice-proxy"
	layer, err := NewLayer(
		File{Path: path, Mode: 0o755, Body: binary},
		File{Path: "/usr/local/bin/python", Link: "sluice-proxy"},
		File{Path: "/usr/local/bin/python3", Link: "sluice-proxy"},
	)
	if err != nil {
		return Image{}, err
	}
	return Image{
		Tag:    ProxyTag,
		Layers: []Layer{layer},
		Config: docker.DockerOCIImageConfig{ImageConfig: oci.ImageConfig{
			User:         "65532:65532",
			Env:          []string{"PATH=/usr/local/bin"},
			Entrypoint:   []string{path},
			ExposedPorts: map[string]struct{}{"8080/tcp": {}},
			StopSignal:   "SIGTERM",
			Labels: map[string]string{
				TitleLabel:                             ProxyTitle,
				"org.opencontainers.image.description": "Outbound policy for containers: CONNECT and HTTP proxy, DNS filter.",
			},
		}, DockerOCIImageConfigExt: docker.DockerOCIImageConfigExt{
			Healthcheck: &docker.HealthcheckConfig{
				Test:     []string{"CMD", path, "health", "--timeout", "5s"},
				Interval: 30 * time.Second, Timeout: 10 * time.Second, Retries: 3,
			},
		}},
	}, nil
}
