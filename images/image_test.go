package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	docker "github.com/moby/docker-image-spec/specs-go/v1"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/google/go-cmp/cmp"
)

// listTar returns the entries of a tar stream as "type mode path [size | -> link]" lines.
func listTar(t *testing.T, r io.Reader) []string {
	t.Helper()
	var lines []string
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 0 {
			t.Errorf("%s: uid %d, gid %d, time %v; want root and the epoch", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		switch h.Typeflag {
		case tar.TypeDir:
			lines = append(lines, fmt.Sprintf("dir %o %s", h.Mode, h.Name))
		case tar.TypeSymlink:
			lines = append(lines, fmt.Sprintf("link %s -> %s", h.Name, h.Linkname))
		default:
			lines = append(lines, fmt.Sprintf("file %o %s %d", h.Mode, h.Name, h.Size))
		}
	}
}

// archive writes images and returns the files of the archive by name.
func archive(t *testing.T, imgs ...Image) map[string][]byte {
	t.Helper()
	var out bytes.Buffer
	if err := WriteArchive(&out, imgs...); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for tr := tar.NewReader(&out); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := files[h.Name]; twice {
			t.Errorf("%s stands twice in the archive", h.Name)
		}
		files[h.Name] = body
	}
}

func TestLayerBytesDoNotDependOnOrder(t *testing.T) {
	a := File{Path: "/etc/a", Mode: 0o644, Body: []byte("a")}
	b := File{Path: "/etc/deep/b", Mode: 0o755, Body: []byte("bb")}
	c := File{Path: "/etc/c", Link: "a"}
	first, err := NewLayer(a, b, c)
	if err != nil {
		t.Fatal(err)
	}
	second, err := NewLayer(c, b, a)
	if err != nil {
		t.Fatal(err)
	}
	if first.sum != second.sum {
		t.Errorf("digest %s, in another order %s", first.sum, second.sum)
	}
	r, err := first.open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	want := []string{
		"dir 755 etc/",
		"file 644 etc/a 1",
		"link etc/c -> a",
		"dir 755 etc/deep/",
		"file 755 etc/deep/b 2",
	}
	if diff := cmp.Diff(want, listTar(t, r)); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

func TestLayerRefuses(t *testing.T) {
	for _, test := range []struct {
		name  string
		files []File
		want  string
	}{
		{"relative", []File{{Path: "etc/a"}}, `"etc/a": the path must be absolute`},
		{"unclean", []File{{Path: "/etc/../a"}}, `"/etc/../a": the path must be absolute`},
		{"root", []File{{Path: "/"}}, `"/": the path must be absolute`},
		{"twice", []File{{Path: "/a"}, {Path: "/a"}}, `"/a" is given twice`},
		{"below_a_file", []File{{Path: "/a"}, {Path: "/a/b"}}, `"/a/b" lies below "/a"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := NewLayer(test.files...); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestLayerFromTarIsTakenAsItIs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "root.tar")
	made, err := NewLayer(File{Path: "/var", Mode: fs.ModeDir | 0o700})
	if err != nil {
		t.Fatal(err)
	}
	r, err := made.open()
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, body, 0o600); err != nil {
		t.Fatal(err)
	}
	read, err := LayerFromTar(file)
	if err != nil {
		t.Fatal(err)
	}
	if read.sum != made.sum || read.Size() != int64(len(body)) {
		t.Errorf("digest %s, %d bytes; want %s, %d", read.sum, read.Size(), made.sum, len(body))
	}
}

func TestArchiveOfTheProxy(t *testing.T) {
	img, err := SluiceProxy([]byte("binary"))
	if err != nil {
		t.Fatal(err)
	}
	files := archive(t, img)
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 1 || len(manifest[0].Layers) != 1 {
		t.Fatalf("manifest %s: want one image of one layer", files["manifest.json"])
	}
	if diff := cmp.Diff([]string{"sluice-proxy:dev"}, manifest[0].RepoTags); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
	wantFiles := []string{
		"dir 755 usr/",
		"dir 755 usr/local/",
		"dir 755 usr/local/bin/",
		"link usr/local/bin/python -> sluice-proxy",
		"link usr/local/bin/python3 -> sluice-proxy",
		"file 755 usr/local/bin/sluice-proxy 6",
	}
	layer := files[manifest[0].Layers[0]]
	if diff := cmp.Diff(wantFiles, listTar(t, bytes.NewReader(layer))); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	var config struct {
		OS     string `json:"os"`
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
		Config struct {
			User        string
			Env         []string
			Entrypoint  []string
			Cmd         []string
			StopSignal  string
			Healthcheck struct {
				Test              []string
				Interval, Timeout time.Duration
			}
		} `json:"config"`
	}
	if err := json.Unmarshal(files[manifest[0].Config], &config); err != nil {
		t.Fatal(err)
	}
	if got, want := config.RootFS.DiffIDs, []string{"sha256:" + hexSum(layer)}; !cmp.Equal(got, want) {
		t.Errorf("diff ids %v, want %v", got, want)
	}
	if manifest[0].Config != hexSum(files[manifest[0].Config])+".json" {
		t.Errorf("configuration is called %s, want its digest", manifest[0].Config)
	}
	c := config.Config
	got := fmt.Sprintf("%s %s %v %v %v %s %v", config.OS, c.User, c.Env, c.Entrypoint, c.Cmd, c.StopSignal, c.Healthcheck)
	if want := "linux 65532:65532 [PATH=/usr/local/bin] [/usr/local/bin/sluice-proxy] [] SIGTERM " +
		"{[CMD /usr/local/bin/sluice-proxy health --timeout 5s] 30s 10s}"; got != want {
		t.Errorf("configuration %q, want %q", got, want)
	}
}

func TestArchiveOfTheController(t *testing.T) {
	img, err := Sluice([]byte("binary"), []byte("other"))
	if err != nil {
		t.Fatal(err)
	}
	files := archive(t, img)
	var manifest []struct {
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 1 || len(manifest[0].Layers) != 1 || !cmp.Equal(manifest[0].RepoTags, []string{"sluice:dev"}) {
		t.Fatalf("manifest %s", files["manifest.json"])
	}
	wantFiles := []string{
		"dir 755 usr/",
		"dir 755 usr/local/",
		"dir 755 usr/local/bin/",
		"file 755 usr/local/bin/sluice 6",
		"file 755 usr/local/bin/sluice-proxy 5",
	}
	if diff := cmp.Diff(wantFiles, listTar(t, bytes.NewReader(files[manifest[0].Layers[0]]))); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if c := img.Config.ImageConfig; !cmp.Equal(c.Entrypoint, []string{"/usr/local/bin/sluice"}) || !cmp.Equal(c.Cmd, []string{"serve"}) || c.User != "" {
		t.Errorf("configuration %+v", c)
	}
}

func TestArchiveIsTheSameEveryTime(t *testing.T) {
	write := func() []byte {
		img, err := SluiceProxy([]byte("binary"))
		if err != nil {
			t.Fatal(err)
		}
		img.Config.Labels["b"], img.Config.Labels["a"] = "2", "1"
		var out bytes.Buffer
		if err := WriteArchive(&out, img); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	first := write()
	for range 20 { // the labels are a map, whose order changes
		if !bytes.Equal(first, write()) {
			t.Fatal("two archives of the same image differ")
		}
	}
}

func TestArchiveSharesLayers(t *testing.T) {
	layer, err := NewLayer(File{Path: "/a", Mode: 0o644})
	if err != nil {
		t.Fatal(err)
	}
	one := Image{Tag: "one:1", Layers: []Layer{layer}}
	two := Image{Tag: "two:1", Layers: []Layer{layer}, Config: docker.DockerOCIImageConfig{ImageConfig: oci.ImageConfig{User: "1"}}}
	if files := archive(t, one, two); len(files) != 4 { // manifest, two configurations, one layer
		t.Errorf("%d files in the archive, want 4", len(files))
	}
}

func TestArchiveRefuses(t *testing.T) {
	labelled := func(label string) docker.DockerOCIImageConfig {
		return docker.DockerOCIImageConfig{ImageConfig: oci.ImageConfig{Labels: map[string]string{label: "x"}}}
	}
	for _, test := range []struct {
		name string
		img  Image
		want string
	}{
		{"no_tag", Image{Tag: "name"}, `"name": the tag must be NAME:TAG`},
		{"policy_label", Image{Tag: "a:b", Config: labelled("sluice.policy")}, `label "sluice.policy"`},
		{"managed_label", Image{Tag: "a:b", Config: labelled("sluice.managed")}, `label "sluice.managed"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := WriteArchive(io.Discard, test.img); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestArchiveNoticesALayerThatChanged(t *testing.T) {
	for _, test := range []struct {
		name   string
		change []byte
	}{
		{"grown", bytes.Repeat([]byte("x"), 4096)},
		{"shrunk", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "root.tar")
			if err := os.WriteFile(file, make([]byte, 1024), 0o600); err != nil {
				t.Fatal(err)
			}
			layer, err := LayerFromTar(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, test.change, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := WriteArchive(io.Discard, Image{Tag: "a:b", Layers: []Layer{layer}}); err == nil {
				t.Error("no error although the layer is not what was hashed")
			}
		})
	}
}
