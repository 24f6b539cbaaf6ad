package internet

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// What the mirrors serve has a fixed date.
var mirrored = time.Unix(1_700_000_000, 0).UTC()

// serveMirrors adds the origins of package managers:
//
//	/debian/            a flat Debian repository (deb [trusted=yes] http://HOST/debian ./) with "labtool"
//	/lab.test/module/   a Go module proxy (GOPROXY) with lab.test/module v1.0.0
//	/npm/               what serveNPM says
//	/maven/             what serveMaven says
//	/crates/NAME        the files of the registry for cargo, whose index is /smart/index.git
func serveMirrors(mux *http.ServeMux) {
	serve := func(path, kind string, body []byte) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			http.ServeContent(w, r, "", mirrored, bytes.NewReader(body))
		})
	}
	const text, binary = "text/plain", "application/octet-stream"
	deb := debianPackage()
	serve("/debian/Packages", text, fmt.Appendf(nil, "%sFilename: ./labtool.deb\nSize: %d\nSHA256: %x\n", debianControl, len(deb), sha256.Sum256(deb)))
	serve("/debian/labtool.deb", binary, deb)

	const module = "/lab.test/module/@v/"
	serve(module+"list", text, []byte("v1.0.0\n"))
	serve(module+"v1.0.0.info", "application/json", []byte(`{"Version":"v1.0.0","Time":"2023-11-14T22:13:20Z"}`))
	serve(module+"v1.0.0.mod", text, []byte(moduleFile))
	serve(module+"v1.0.0.zip", "application/zip", moduleZip())

	serveNPM(mux)
	serveMaven(mux)
	mux.HandleFunc("GET /crates/{name}", serveCrate)
}

const debianControl = "Package: labtool\nVersion: 1.0\nArchitecture: all\nMaintainer: Lab <lab@apt.test>\nDescription: a tool of the lab\n"

// debianPackage returns labtool, a script that says "lab" (deb(5)).
func debianPackage() []byte {
	var out bytes.Buffer
	out.WriteString("!<arch>\n")
	for _, member := range []struct {
		name string
		body []byte
	}{
		{"debian-binary", []byte("2.0\n")},
		{"control.tar.gz", tarball(entry{"./control", debianControl, 0o644})},
		{"data.tar.gz", tarball(entry{"./usr/bin/labtool", "#!/bin/sh\necho lab\n", 0o755})},
	} {
		fmt.Fprintf(&out, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", member.name, mirrored.Unix(), 0, 0, "100644", len(member.body)) // ar(5)
		out.Write(member.body)
		if len(member.body)%2 == 1 {
			out.WriteByte('\n')
		}
	}
	return out.Bytes()
}

type entry struct {
	name, body string
	mode       int64
}

// tarball returns a compressed archive of files, with the directories above them.
func tarball(files ...entry) []byte {
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	w := tar.NewWriter(packed)
	made := map[string]bool{"": true, ".": true}
	for _, f := range files {
		for i, c := range f.name {
			if dir := f.name[:i]; c == '/' && !made[dir] {
				made[dir] = true
				must(w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: mirrored}))
			}
		}
		must(w.WriteHeader(&tar.Header{Name: f.name, Size: int64(len(f.body)), Mode: f.mode, ModTime: mirrored}))
		_, err := w.Write([]byte(f.body))
		must(err)
	}
	must(w.Close())
	must(packed.Close())
	return out.Bytes()
}

// must is for writers into memory, which do not fail.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

const moduleFile = "module lab.test/module\n\ngo 1.21\n"

// moduleZip returns a module with a package that says "lab" (https://go.dev/ref/mod#zip-files).
func moduleZip() []byte {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for name, body := range map[string]string{"go.mod": moduleFile, "module.go": "package module\n\nconst Name = \"lab\"\n"} {
		f, err := w.Create("lab.test/module@v1.0.0/" + name)
		must(err)
		_, err = f.Write([]byte(body))
		must(err)
	}
	must(w.Close())
	return out.Bytes()
}

// serveGRPC answers calls to /lab.Echo/Stream as a gRPC server does: each message is sent back as it comes, and the
// status stands in the trailers (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
func serveGRPC(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor != 2 || !strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		http.Error(w, "gRPC over HTTP/2 only", http.StatusUnsupportedMediaType)
		return
	}
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	control := http.NewResponseController(w)
	control.Flush()
	buffer := make([]byte, 4096)
	for sent := 0; sent < maxBody; {
		n, err := r.Body.Read(buffer)
		w.Write(buffer[:n])
		control.Flush()
		sent += n
		if err != nil {
			break
		}
	}
	w.Header().Set("Grpc-Status", "0")
}
