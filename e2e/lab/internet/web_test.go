package internet

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/net/websocket"
)

// testWeb serves the web of an internet on loopback, as one of its ports does.
func testWeb(t *testing.T) (*httptest.Server, *http.Client) {
	t.Helper()
	ca, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	n := &Internet{record: newRecorder(), ca: ca}
	if n.git, err = newGitOrigin(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(n.webHandler())
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{GetCertificate: ca.certificate}
	server.StartTLS()
	t.Cleanup(server.Close)
	server.TLS.Certificates = nil // httptest's own
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca.pem()) {
		t.Fatal("the CA's certificate cannot be read")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return server, &http.Client{Transport: transport}
}

func TestWeb(t *testing.T) {
	server, client := testWeb(t)
	for _, test := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/", "", 200, " at 127.0.0.1 by https"},
		{"GET", "/headers", "", 200, `"protocol":"HTTP/2.0"`},
		{"GET", "/bytes?n=3", "", 200, "\x00\x00\x00"},
		{"GET", "/bytes?n=-1", "", 400, "n must be"},
		{"POST", "/upload", "abc", 200, "3 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
		{"GET", "/status?code=413", "", 413, ""},
		{"GET", "/status?code=7", "", 400, ""},
		{"GET", "/events?n=1", "", 200, "data: 0\n\n"},
		{"GET", "/simple/labpkg/", "", 200, "labpkg-1.0-py3-none-any.whl#sha256="},
		{"GET", "/dumb/lab.git/info/refs", "", 200, "refs/heads/main"},
		{"GET", "/smart/lab.git/info/refs?service=git-upload-pack", "", 200, "# service=git-upload-pack"},
		{"GET", "/absent", "", 404, ""},
	} {
		request, err := http.NewRequest(test.method, server.URL+test.path, strings.NewReader(test.body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != test.status || !strings.Contains(string(body), test.want) {
			t.Errorf("%s %s: %d %q, %v; want %d with %q", test.method, test.path, response.StatusCode, body, err, test.status, test.want)
		}
	}
}

func TestWebSocketEcho(t *testing.T) {
	server, client := testWeb(t)
	config, err := websocket.NewConfig("wss"+strings.TrimPrefix(server.URL, "https")+"/ws", server.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.TlsConfig = client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.TlsConfig.NextProtos = []string{"http/1.1"}
	ws, err := websocket.DialConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	if err := websocket.Message.Send(ws, "hello"); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := websocket.Message.Receive(ws, &got); err != nil || got != "hello" {
		t.Errorf("%q, %v; want the echo", got, err)
	}
}

func TestGitRepositoryIsTheSameEveryTime(t *testing.T) {
	dir := t.TempDir()
	g, err := newGitOrigin(dir)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(g.git, "-C", dir+"/lab.git", "rev-parse", "main").Output()
	if err != nil {
		t.Fatal(err)
	}
	if want := "3fb3169"; !strings.HasPrefix(string(out), want) {
		t.Errorf("commit %s, want %s…", out, want)
	}
}
