package internet

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
)

// Crates is how many the lab's registry for cargo has: lab-000, lab-001 and so on, all of version 0.1.0.
const Crates = 100

// crateBytes is about what each takes, so that many are under way at once.
const crateBytes = 30_000

func crateName(i int) string { return fmt.Sprintf("lab-%03d", i) }

// crates are the files, by name.
var crates = sync.OnceValue(func() map[string][]byte {
	all := map[string][]byte{}
	noise := rand.NewChaCha8([32]byte{1})
	for i := range Crates {
		name := crateName(i)
		data := make([]byte, crateBytes) // does not compress
		noise.Read(data)
		all[name] = tarball(
			entry{name + "-0.1.0/Cargo.toml", fmt.Sprintf("[package]\nname = %q\nversion = \"0.1.0\"\n", name), 0o644},
			entry{name + "-0.1.0/src/lib.rs", "", 0o644},
			entry{name + "-0.1.0/data", string(data), 0o644})
	}
	return all
})

// crateIndex is the registry's index as a history in git's fast-import form
// (https://doc.rust-lang.org/cargo/reference/registry-index.html). The files lie on another host, as they do on the real
// one.
func crateIndex() string {
	var out strings.Builder
	out.WriteString("commit refs/heads/main\ncommitter Lab <lab@git.test> 1700000000 +0000\ndata 5\nIndex\n")
	add := func(path, body string) { fmt.Fprintf(&out, "M 644 inline %s\ndata %d\n%s\n", path, len(body), body) }
	add("config.json", `{"dl": "https://files.crates.test/crates/{crate}"}`)
	for i := range Crates {
		name := crateName(i)
		add(fmt.Sprintf("%s/%s/%s", name[:2], name[2:4], name), fmt.Sprintf(
			`{"name":%q,"vers":"0.1.0","deps":[],"cksum":"%x","features":{},"yanked":false}`+"\n", name, sha256.Sum256(crates()[name])))
	}
	return out.String()
}

func serveCrate(w http.ResponseWriter, r *http.Request) {
	body, ok := crates()[r.PathValue("name")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	http.ServeContent(w, r, "", mirrored, bytes.NewReader(body))
}
