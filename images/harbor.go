package images

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	docker "github.com/moby/docker-image-spec/specs-go/v1"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/crypto/blake2b"
)

// HarborVersion is the Harbor whose sidecar [Harbor] stands in for.
const HarborVersion = "0.25.0"

// harborRepository is what Harbor calls its sidecar's image, before the hash of what it would build it from
// (_EGRESS_CONTROL_SIDECAR_DOCKER_NAME of its environments/docker/docker.py).
const harborRepository = "harbor-prebuilt:harbor-docker-egress-control-sidecar--"

// harborHashes are those of HarborVersion as pip and uv install it under the usual umask, 022, by the engine's platform.
var harborHashes = map[string]string{
	"linux/amd64": "9af3dc172792cee8",
	"linux/arm64": "e9f39ce1643ee690",
}

// Harbor is the image of the sidecar that Harbor's Docker environment starts beside a task: the static binary
// sluice-harbor under the names that Harbor calls. Harbor builds no image where one has the tag already.
//
// Its user is root, for the sidecar makes rules in the task's network: Harbor's compose file gives it NET_ADMIN and
// NET_RAW, beside what the engine gives every container.
func Harbor(binary []byte, tag string) (Image, error) {
	const path = "/opt/egress-sidecar/entrypoint.sh"
	layer, err := NewLayer(
		File{Path: path, Mode: 0o755, Body: binary},
		File{Path: "/usr/local/bin/network-policy", Link: path},
		File{Path: "/usr/bin/test", Link: path},
		File{Path: "/run", Mode: fs.ModeDir | 0o755},
		File{Path: "/tmp", Mode: fs.ModeDir | 0o755}, // of one program alone
	)
	if err != nil {
		return Image{}, err
	}
	return Image{
		Tag:    tag,
		Layers: []Layer{layer},
		Config: docker.DockerOCIImageConfig{ImageConfig: oci.ImageConfig{
			Env:        []string{"PATH=/usr/local/bin:/usr/bin"},
			Entrypoint: []string{path},
			StopSignal: "SIGTERM",
			Labels: map[string]string{
				TitleLabel:                             "sluice-harbor",
				"org.opencontainers.image.description": "Outbound policy for the tasks of Harbor " + HarborVersion + ", in place of its own sidecar.",
			},
		}},
	}, nil
}

// HarborTag is the name that Harbor gives its sidecar's image on an engine of a platform, as in "linux/amd64". It holds a
// hash of the files that Harbor would build the image from, their modes included, so it depends on how Harbor was
// installed: packageDir is the directory of its Python package, or "" for HarborVersion as it is usually installed.
//
// known reports whether the files, but for their modes, are those of HarborVersion. The sidecar of another Harbor may be
// called in another way.
func HarborTag(packageDir, platform string) (tag string, known bool, err error) {
	usual, ok := harborHashes[platform]
	if packageDir == "" {
		if !ok {
			return "", false, fmt.Errorf("the name that Harbor gives its sidecar's image on %s is not known: say where Harbor is installed", platform)
		}
		return harborRepository + usual, true, nil
	}
	context := filepath.Join(packageDir, "environments", "docker", "harbor-docker-egress-control-sidecar")
	hash, err := harborHash(context, platform, fs.FileMode.Perm)
	if err != nil {
		return "", false, fmt.Errorf("no sidecar of Harbor in its package %s: %w", packageDir, err)
	}
	plain, err := harborHash(context, platform, usualMode)
	if err != nil {
		return "", false, err
	}
	return harborRepository + hash, ok && plain == usual, nil
}

// usualMode is the mode that an installer under the umask 022 gives a file.
func usualMode(m fs.FileMode) fs.FileMode {
	switch {
	case m&fs.ModeSymlink != 0:
		return 0o777
	case m&0o111 != 0:
		return 0o755
	}
	return 0o644
}

// harborHash is docker_build_context_hash of Harbor's utils/container_cache.py, for a context that has its Dockerfile in
// it and takes no build arguments.
func harborHash(context, platform string, mode func(fs.FileMode) fs.FileMode) (string, error) {
	hash, err := blake2b.New(8, nil)
	if err != nil {
		return "", err
	}
	dockerfile, err := os.ReadFile(filepath.Join(context, "Dockerfile"))
	if err != nil {
		return "", err
	}
	hash.Write([]byte("Dockerfile"))
	hash.Write(dockerfile)
	files, err := contextFiles(context, "")
	if err != nil {
		return "", err
	}
	for _, name := range files {
		path := filepath.Join(context, name)
		info, err := os.Lstat(path)
		if err != nil {
			return "", err
		}
		var kind uint32 // of inode(7)
		var content []byte
		switch info.Mode().Type() {
		case 0:
			kind = 0o100000
			content, err = os.ReadFile(path)
		case fs.ModeSymlink:
			kind = 0o120000
			var to string
			to, err = os.Readlink(path)
			content = []byte(to)
		default:
			err = fmt.Errorf("%s: it is neither a file nor a link", path)
		}
		if err != nil {
			return "", err
		}
		hash.Write([]byte(name))
		hash.Write(binary.LittleEndian.AppendUint32(nil, kind|uint32(mode(info.Mode()))))
		hash.Write(binary.LittleEndian.AppendUint64(nil, uint64(info.Size())))
		hash.Write(content)
	}
	hash.Write([]byte("platform\x00" + platform + "\x00build_args\x00"))
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// contextFiles lists all that is no directory, relative to root: of each directory first its own, then those of the
// directories in it.
func contextFiles(root, dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(root, dir)) // sorted
	if err != nil {
		return nil, err
	}
	var files, below []string
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if !e.IsDir() {
			files = append(files, name)
			continue
		}
		more, err := contextFiles(root, name)
		if err != nil {
			return nil, err
		}
		below = slices.Concat(below, more)
	}
	return slices.Concat(files, below), nil
}
