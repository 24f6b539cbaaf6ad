package docker

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Limits of one artifact, against what an untrusted container may have left for us.
const (
	maxArtifactBytes = 4 << 30
	maxArtifactFiles = 100_000
)

// extract writes an archive of a file or a directory, of which all names begin with name, to a place that takes its
// name. Links, devices and names that lead elsewhere are left out, for they come from the task: nothing is ever
// written outside of to, and nothing there is followed. Files are readable by their owner; the executable bit stays.
func extract(archive io.Reader, name, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	parent, err := os.OpenRoot(filepath.Dir(to))
	if err != nil {
		return err
	}
	defer parent.Close()
	base := filepath.Base(to)
	content := tar.NewReader(archive)
	var written int64
	found := false
	for files := 0; ; files++ {
		h, err := content.Next()
		if errors.Is(err, io.EOF) && !found {
			return errors.New("is neither a file nor a directory")
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if files == maxArtifactFiles {
			return fmt.Errorf("has more than %d files", maxArtifactFiles)
		}
		clean := path.Clean(h.Name)
		rest, below := strings.CutPrefix(clean, name)
		if !below || rest != "" && rest[0] != '/' || !filepath.IsLocal(filepath.Join(base, rest)) {
			continue
		}
		place := filepath.Join(base, filepath.FromSlash(rest))
		switch h.Typeflag {
		case tar.TypeDir:
			if err := parent.MkdirAll(place, 0o755); err != nil {
				return err
			}
			found = true
		case tar.TypeReg:
			if written += h.Size; written > maxArtifactBytes {
				return fmt.Errorf("has more than %d bytes", int64(maxArtifactBytes))
			}
			if err := write(parent, place, os.FileMode(0o644|h.Mode&0o111), content); err != nil {
				return err
			}
			found = true
		}
	}
}

func write(root *os.Root, place string, mode os.FileMode, content io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(place), 0o755); err != nil {
		return err
	}
	if err := root.Remove(place); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(place, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}
