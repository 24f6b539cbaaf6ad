package images

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// File is one entry of a layer. It belongs to root; its times are the Unix epoch.
type File struct {
	// Path is absolute and clean: "/usr/local/bin/x". Directories above it are made, mode 0755.
	Path string
	// Mode holds the permission bits, and fs.ModeDir for a directory. Ignored for a link.
	Mode fs.FileMode
	Body []byte
	// Link, if set, makes the entry a symbolic link to this path.
	Link string
}

// Layer is one uncompressed layer of an image: a tar stream that can be read any number of times.
type Layer struct {
	open func() (io.ReadCloser, error)
	size int64
	// sum is the SHA-256 of the stream in hexadecimal digits, which Docker calls the diff id.
	sum string
}

// Size returns the length of the layer's tar stream in bytes.
func (l Layer) Size() int64 { return l.size }

// NewLayer packs files. The same files give the same bytes, in whatever order they come.
// It is an error to name a path twice, or one that is not absolute and clean.
func NewLayer(files ...File) (Layer, error) {
	entries := map[string]File{}
	for _, f := range files {
		if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/" {
			return Layer{}, fmt.Errorf("image file %q: the path must be absolute and clean", f.Path)
		}
		if _, twice := entries[f.Path]; twice {
			return Layer{}, fmt.Errorf("image file %q is given twice", f.Path)
		}
		entries[f.Path] = f
	}
	for _, f := range files {
		for dir := path.Dir(f.Path); dir != "/"; dir = path.Dir(dir) {
			if above, ok := entries[dir]; !ok {
				entries[dir] = File{Path: dir, Mode: fs.ModeDir | 0o755}
			} else if !above.Mode.IsDir() {
				return Layer{}, fmt.Errorf("image file %q lies below %q, which is no directory", f.Path, dir)
			}
		}
	}
	ordered := make([]File, 0, len(entries))
	for _, f := range entries {
		ordered = append(ordered, f)
	}
	slices.SortFunc(ordered, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })

	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	for _, f := range ordered {
		if err := w.WriteHeader(header(f)); err != nil {
			return Layer{}, fmt.Errorf("image file %q: %w", f.Path, err)
		}
		if _, err := w.Write(f.Body); err != nil {
			return Layer{}, fmt.Errorf("image file %q: %w", f.Path, err)
		}
	}
	if err := w.Close(); err != nil {
		return Layer{}, err
	}
	sum := sha256.Sum256(stream.Bytes())
	return Layer{
		open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(stream.Bytes())), nil },
		size: int64(stream.Len()),
		sum:  hex.EncodeToString(sum[:]),
	}, nil
}

// LayerFromTar takes an uncompressed tar file as it is, such as an unpacked root file system.
// The file is read again when the image is written and must not change in between.
func LayerFromTar(file string) (Layer, error) {
	f, err := os.Open(file)
	if err != nil {
		return Layer{}, err
	}
	defer f.Close()
	hash := sha256.New()
	size, err := io.Copy(hash, f)
	if err != nil {
		return Layer{}, err
	}
	return Layer{
		open: func() (io.ReadCloser, error) { return os.Open(file) },
		size: size,
		sum:  hex.EncodeToString(hash.Sum(nil)),
	}, nil
}

func header(f File) *tar.Header {
	h := &tar.Header{
		Name:    strings.TrimPrefix(f.Path, "/"),
		Mode:    int64(f.Mode.Perm()),
		ModTime: time.Unix(0, 0),
		Format:  tar.FormatUSTAR,
	}
	switch {
	case f.Link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Link, 0o777
	case f.Mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	default:
		h.Typeflag, h.Size = tar.TypeReg, int64(len(f.Body))
	}
	return h
}
