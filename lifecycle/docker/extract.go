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

// maxLeftOut is how many entries of an artifact that were left out are named.
const maxLeftOut = 100

// MakeRoom makes sure that what will be at a path is of an artifact alone: a file or link that is there is removed, and a
// directory that is not empty is an error, for its files would stand beside the artifact's.
func MakeRoom(to string) error {
	info, err := os.Lstat(to)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return os.Remove(to)
	}
	d, err := os.Open(to)
	if err != nil {
		return err
	}
	defer d.Close()
	if _, err := d.ReadDir(1); !errors.Is(err, io.EOF) {
		return errors.Join(err, fmt.Errorf("directory %s is not empty: what is in it would be taken for this run's: remove it, or name another place", to))
	}
	return nil
}

// extract writes an archive of a file or a directory, of which all names begin with name, to a place that takes its
// name. Links, devices and names that lead elsewhere are left out, for they come from the task: nothing is ever
// written outside of to, and nothing there is followed. leftOut names them, each with what it is. Files are readable by
// their owner; the executable bit stays.
func extract(archive io.Reader, name, to string) (leftOut []string, err error) {
	if err := MakeRoom(to); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return nil, err
	}
	parent, err := os.OpenRoot(filepath.Dir(to))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	base := filepath.Base(to)
	content := tar.NewReader(archive)
	var written int64
	found, left := false, leftOutList{}
	for files := 0; ; files++ {
		h, err := content.Next()
		if errors.Is(err, io.EOF) && !found {
			return left.all(), errors.New("is neither a file nor a directory")
		}
		if errors.Is(err, io.EOF) {
			return left.all(), nil
		}
		if err != nil {
			return left.all(), err
		}
		if files == maxArtifactFiles {
			return left.all(), fmt.Errorf("has more than %d files", maxArtifactFiles)
		}
		clean := path.Clean(h.Name)
		rest, below := strings.CutPrefix(clean, name)
		if !below || rest != "" && rest[0] != '/' || !filepath.IsLocal(filepath.Join(base, rest)) {
			left.add(h.Name, "a name that leads elsewhere")
			continue
		}
		place := filepath.Join(base, filepath.FromSlash(rest))
		switch h.Typeflag {
		case tar.TypeDir:
			if err := parent.MkdirAll(place, 0o755); err != nil {
				return left.all(), err
			}
			found = true
		case tar.TypeReg:
			if written += h.Size; written > maxArtifactBytes {
				return left.all(), fmt.Errorf("has more than %d bytes", int64(maxArtifactBytes))
			}
			if err := write(parent, place, os.FileMode(0o644|h.Mode&0o111), content); err != nil {
				return left.all(), err
			}
			found = true
		default:
			left.add(h.Name, entryKind(h.Typeflag))
		}
	}
}

// leftOutList names the first entries that were left out, and counts the others.
type leftOutList struct {
	named []string
	more  int
}

func (l *leftOutList) add(name, what string) {
	if len(l.named) == maxLeftOut {
		l.more++
		return
	}
	l.named = append(l.named, fmt.Sprintf("%s: %s", name, what))
}

func (l *leftOutList) all() []string {
	if l.more > 0 {
		return append(l.named, fmt.Sprintf("and %d more", l.more))
	}
	return l.named
}

// entryKind says what an entry is that is no file and no directory.
func entryKind(flag byte) string {
	switch flag {
	case tar.TypeSymlink:
		return "a symbolic link"
	case tar.TypeLink:
		return "a hard link"
	case tar.TypeChar, tar.TypeBlock:
		return "a device"
	case tar.TypeFifo:
		return "a pipe"
	}
	return "neither a file nor a directory"
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
