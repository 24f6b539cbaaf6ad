package internet

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"time"
)

// wheelName is the one file of the lab's Python package index.
const wheelName = "labpkg-1.0-py3-none-any.whl"

// wheel is a package whose module says "lab", as pip wants it.
var wheel = func() []byte {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, file := range []struct{ name, body string }{
		{"labpkg.py", "name = 'lab'\n"},
		{"labpkg-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: labpkg\nVersion: 1.0\n"},
		{"labpkg-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{"labpkg-1.0.dist-info/RECORD", "labpkg.py,,\nlabpkg-1.0.dist-info/METADATA,,\nlabpkg-1.0.dist-info/WHEEL,,\nlabpkg-1.0.dist-info/RECORD,,\n"},
	} {
		f, err := w.CreateHeader(&zip.FileHeader{Name: file.name, Modified: time.Unix(1_700_000_000, 0)})
		if err == nil {
			_, err = f.Write([]byte(file.body))
		}
		if err != nil {
			panic(err) // a bytes.Buffer does not fail
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return out.Bytes()
}()

// serveIndex is the package's page (PEP 503). The file lies on another host, as it does on the real index.
func serveIndex(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/html")
	fmt.Fprintf(w, "<a href=\"https://files.pypi.test/files/%s#sha256=%x\">%s</a>\n", wheelName, sha256.Sum256(wheel), wheelName)
}

func serveWheel(w http.ResponseWriter, r *http.Request) {
	http.ServeContent(w, r, wheelName, time.Time{}, bytes.NewReader(wheel))
}
