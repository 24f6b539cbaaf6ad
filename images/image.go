// Package images turns files into container images and loads them into a Docker engine.
//
// There is no Dockerfile, no registry and no builder: an image is a list of layers made in this process and a
// configuration, written as a docker-archive (what "docker save" prints) and sent to the engine by its API. The same
// input gives the same bytes, so the same image id, on every machine.
package images

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	docker "github.com/moby/docker-image-spec/specs-go/v1"
	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// PolicyLabelPrefix begins the labels by which an operator gives a container its policy. An image may not carry one,
// because the author of a workload must not choose the policy that it runs under.
const PolicyLabelPrefix = "sluice."

// Image is an image that has not been loaded yet.
type Image struct {
	// Tag is the name with its tag, "sluice-proxy:dev".
	Tag    string
	Layers []Layer
	Config docker.DockerOCIImageConfig
}

// Size returns the bytes of all layers together.
func (img Image) Size() int64 {
	var n int64
	for _, l := range img.Layers {
		n += l.size
	}
	return n
}

// WriteArchive writes images as one docker-archive. Layers that several images share are written once.
func WriteArchive(w io.Writer, imgs ...Image) error {
	archive := tar.NewWriter(w)
	type entry struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	var manifest []entry
	written := map[string]bool{}
	for _, img := range imgs {
		config, err := img.config()
		if err != nil {
			return err
		}
		e := entry{Config: hexSum(config) + ".json", RepoTags: []string{img.Tag}}
		if err := addOnce(archive, written, e.Config, int64(len(config)), bytes.NewReader(config)); err != nil {
			return err
		}
		for _, l := range img.Layers {
			name := l.sum + "/layer.tar"
			if err := l.add(archive, written, name); err != nil {
				return fmt.Errorf("image %s: layer: %w", img.Tag, err)
			}
			e.Layers = append(e.Layers, name)
		}
		manifest = append(manifest, e)
	}
	list, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	if err := addOnce(archive, written, "manifest.json", int64(len(list)), bytes.NewReader(list)); err != nil {
		return err
	}
	return archive.Close()
}

// config returns the image's configuration file, whose SHA-256 is the image id.
func (img Image) config() ([]byte, error) {
	repository, tag, ok := strings.Cut(img.Tag, ":")
	if !ok || repository == "" || tag == "" {
		return nil, fmt.Errorf("image %q: the tag must be NAME:TAG", img.Tag)
	}
	for label := range img.Config.Labels {
		if strings.HasPrefix(label, PolicyLabelPrefix) {
			return nil, fmt.Errorf("image %s: label %q: an image may not choose a policy; put the label on the container", img.Tag, label)
		}
	}
	epoch := time.Unix(0, 0).UTC()
	full := docker.DockerOCIImage{
		Image: oci.Image{
			Created:  &epoch,
			Platform: oci.Platform{Architecture: runtime.GOARCH, OS: "linux"},
			RootFS:   oci.RootFS{Type: "layers"},
		},
		Config: img.Config,
	}
	for _, l := range img.Layers {
		full.RootFS.DiffIDs = append(full.RootFS.DiffIDs, digest.NewDigestFromEncoded(digest.SHA256, l.sum))
		full.History = append(full.History, oci.History{Created: &epoch})
	}
	return json.Marshal(full)
}

func (l Layer) add(archive *tar.Writer, written map[string]bool, name string) error {
	r, err := l.open()
	if err != nil {
		return err
	}
	defer r.Close()
	return addOnce(archive, written, name, l.size, r)
}

func addOnce(archive *tar.Writer, written map[string]bool, name string, size int64, r io.Reader) error {
	if written[name] {
		return nil
	}
	written[name] = true
	if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, ModTime: time.Unix(0, 0)}); err != nil {
		return err
	}
	// A layer file that grew or shrank since it was hashed is an error of the tar writer here or at the next header.
	_, err := io.Copy(archive, r)
	return err
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
