package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"image/png"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"sluice/control"
	"sluice/controller/api"
	"sluice/controller/ui"
)

var screenshots = flag.String("screenshots", "", "keep what TestPage sees of the page in this `directory`, to be looked at")

// fleet is what a page shows without a controller.
type fleet struct {
	all     []api.Status
	hub     control.Hub
	packets atomic.Uint64
}

func (f *fleet) List(context.Context) ([]api.Status, error) { return f.all, nil }
func (f *fleet) Packets(string) (allowed, refused uint64, ok bool) {
	return f.packets.Add(1000), 0, true
}

func (f *fleet) Events() *control.Hub { return &f.hub }

// markup is what a workload might call something. Shown as text it does nothing.
const markup = `<img src=x onerror="document.title='run'"><script>document.title='run'</script>`

func newFleet(n int) *fleet {
	f := &fleet{}
	modes := []string{"public", "no-network", "allowlist", "denylist"}
	phases := []string{"baseline", "run", "evaluation"}
	for i := range n {
		f.all = append(f.all, api.Status{ID: fmt.Sprintf("%012x%052x", (i+1)*0x9e3779b97f, i), Name: fmt.Sprintf("task-%04d", i), State: api.Attached,
			Phase: phases[i%3], Mode: modes[i%4], Targets: 12, Generation: uint64(i%9 + 1), Since: time.Now().Add(-time.Duration(i) * time.Minute)})
	}
	last := &f.all[n-1]
	last.State, last.Problem = api.Quarantined, "switch to run: the proxy did not answer: nothing passes until a switch succeeds"
	f.all[1].Name, f.all[1].Weak = markup, []string{"it may send raw frames: --cap-drop NET_RAW"}
	return f
}

// publish gives a page something to count.
func (f *fleet) publish() {
	targets := []string{"files.example.com", "2001:db8::1", markup, "registry.example.org"}
	protocols := []string{"tls", "udp", "http", "dns-udp"}
	for i := range 400 {
		s := &f.all[i%min(len(f.all), 90)]
		verdict := "refuse"
		if i%3 == 0 {
			verdict = "allow"
		}
		f.hub.Publish(control.Event{Time: time.Now(), Container: s.Name, ContainerID: s.ID, Phase: s.Phase, Protocol: protocols[i%4], Port: 443,
			Target: targets[i%4], Verdict: verdict, Reason: "not-listed", Decision: fmt.Sprintf("%016x", i), BytesIn: 12_345, BytesOut: 678})
	}
}

// TestPage reads the controller's page with a browser, in a network that leads nowhere else.
func TestPage(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	b := startBrowser(t)
	t.Run("controller", func(t *testing.T) {
		o := startObserved(t, "seeing-page")
		b.open(t, "http://"+pageAddress+"/#q="+o.name, 1280, 900)
		o.use()
		b.wait(t, `document.querySelector("#containers .attached") && document.querySelector("#refusals .decision")?.textContent.length === 16`)
		b.wait(t, `document.querySelector("#refusals").textContent.includes("refused-seeing.any.example")`)
		b.wait(t, `[...document.querySelectorAll("#refusals tbody tr")].every((r) => r.cells[1].textContent.startsWith("seeing-page"))`)
		b.wait(t, `/^[0-9.,]+$/.test(document.querySelector("#containers tbody td:nth-last-child(2)").textContent)`) // direct packets
		b.screenshot(t, "controller")
	})
	for _, row := range []struct{ containers, rows int }{{3, 3}, {2000, 25}} {
		t.Run(fmt.Sprint(row.containers), func(t *testing.T) {
			f := newFleet(row.containers)
			address, asked := servePage(t, f)
			b.open(t, address, 1280, 900)
			b.wait(t, fmt.Sprintf(`document.querySelectorAll("#containers tbody tr").length === %d`, row.rows))
			f.publish() // the page is told without being loaded again
			b.wait(t, `document.querySelectorAll("#refusals tbody tr").length === 30 && document.querySelector("#containers .hot")`)
			b.screenshot(t, fmt.Sprint("desktop-", row.containers))
			if before := asked.Load(); before < 2 {
				t.Errorf("the page has asked %d times", before)
			}
			b.wait(t, `document.querySelector("#containers tbody tr").className === "urgent"`)
			b.wait(t, `document.title === "(1 quarantined) Sluice"`)
			b.wait(t, fmt.Sprintf(`document.querySelector("#containers").textContent.includes(%q)`, markup))
			b.wait(t, fmt.Sprintf(`document.querySelector("#refusals").textContent.includes(%q)`, markup))
			b.wait(t, `document.querySelectorAll("main img, main script").length === 0`)

			b.size(t, 390, 844)
			b.wait(t, `document.documentElement.scrollWidth <= innerWidth && [...document.querySelectorAll("section")].every((s) => s.scrollWidth <= s.clientWidth)`)
			b.screenshot(t, fmt.Sprint("phone-", row.containers))
			b.size(t, 1280, 900)

			b.run(t, `const f = document.querySelector("#filter"); f.value = "task-0002"; f.dispatchEvent(new Event("input"))`)
			b.wait(t, `document.querySelectorAll("#containers tbody tr").length === 1 && document.querySelector("#containers .name").textContent === "task-0002"`)
			b.wait(t, `[...document.querySelectorAll("#refusals tbody tr")].every((r) => r.cells[1].textContent === "task-0002")`)
			b.run(t, `const f = document.querySelector("#filter"); f.value = ""; f.dispatchEvent(new Event("input"))`)
			b.wait(t, fmt.Sprintf(`document.querySelectorAll("#containers tbody tr").length === %d`, row.rows))
			if row.containers > row.rows {
				b.run(t, `document.querySelector("#on").click()`)
				b.wait(t, `document.querySelector("#shown").textContent === "26 to 50 of 2,000"`)
				b.run(t, `document.querySelector("#back").click()`)
				b.wait(t, `document.querySelector("#shown").textContent === "1 to 25 of 2,000"`)
			}
			b.wait(t, `document.title === "(1 quarantined) Sluice"`) // nothing that was shown has run
		})
	}
	// The page's own rules hold in the browser: no script but its own, and nothing from elsewhere.
	t.Run("nothing-else-runs", func(t *testing.T) {
		address, _ := servePage(t, newFleet(3))
		b.open(t, address, 1280, 900)
		b.wait(t, `document.querySelectorAll("#containers tbody tr").length === 3`)
		b.run(t, `window.refused = []; document.addEventListener("securitypolicyviolation", (e) => refused.push(e.effectiveDirective))`)
		b.run(t, `const s = document.createElement("script"); try { s.textContent = "window.ran = 1" } catch { refused.push("typed") }; document.body.append(s)`)
		b.run(t, `try { document.body.innerHTML += "<b>x</b>" } catch { refused.push("innerHTML") }`)
		b.run(t, `fetch("http://127.0.0.1:1/").catch(() => refused.push("fetch")); 0`)
		b.wait(t, `["innerHTML", "connect-src", "fetch"].every((x) => refused.includes(x)) && window.ran === undefined`)
	})
}

// servePage serves a page in the engine's network namespace, where the browser is. Asked counts questions for data.
func servePage(t *testing.T, f *fleet) (address string, asked *atomic.Int64) {
	t.Helper()
	page := ui.New(f, "v1.2.3")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- page.Run(ctx) }()
	asked = &atomic.Int64{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/data" {
			asked.Add(1)
		}
		page.ServeHTTP(w, req)
	}))
	server.Listener.Close()
	if err := lab.InEngineNamespace(func() (err error) {
		server.Listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	server.Start()
	t.Cleanup(func() {
		server.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return server.URL + "/", asked
}

// browser is Chromium, told what to do by its DevTools protocol. A test and its parts use it one after the other.
type browser struct {
	port int
	conn *websocket.Conn
	last int
}

// origin is who talks to the browser, as far as it asks.
const origin = "http://127.0.0.1"

func startBrowser(t *testing.T) *browser {
	t.Helper()
	dir := t.TempDir()
	process := exec.Command(program(t, "chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--no-first-run", "--hide-scrollbars", "--force-prefers-reduced-motion",
		"--user-data-dir="+dir, "--remote-debugging-port=0", "--remote-allow-origins="+origin, "about:blank")
	process.Env = append(process.Environ(), "HOME="+dir)
	var log strings.Builder
	process.Stdout, process.Stderr = &log, &log
	if err := lab.InEngineNamespace(process.Start); err != nil {
		t.Fatal(err)
	}
	b := &browser{}
	t.Cleanup(func() {
		if b.conn != nil {
			b.call(t, "Browser.close", nil, nil)
			b.conn.Close()
		} else {
			process.Process.Kill()
		}
		if err := process.Wait(); err != nil || t.Failed() {
			t.Errorf("chromium: %v\n%s", err, &log)
		}
	})
	// It writes down where it listens.
	var path string
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(filepath.Join(dir, "DevToolsActivePort"))
		if _, scanErr := fmt.Sscan(string(text), &b.port, &path); err == nil && scanErr == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("chromium does not listen: %v", err)
		}
	}
	var pages []struct{ Type, WebSocketDebuggerURL string }
	answer, err := inEngineNamespace.Get(fmt.Sprintf("http://127.0.0.1:%d/json/list", b.port))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&pages); err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		if p.Type != "page" {
			continue
		}
		config, err := websocket.NewConfig(p.WebSocketDebuggerURL, origin)
		if err != nil {
			t.Fatal(err)
		}
		var conn net.Conn
		if err := lab.InEngineNamespace(func() (err error) {
			conn, err = net.Dial("tcp", fmt.Sprint("127.0.0.1:", b.port))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if b.conn, err = websocket.NewClient(config, conn); err != nil {
			t.Fatal(errors.Join(err, conn.Close()))
		}
		b.conn.MaxPayloadBytes = 32 << 20
		return b
	}
	t.Fatalf("chromium has no page: %+v", pages)
	return nil
}

// call sends a command and waits for its result.
func (b *browser) call(t *testing.T, method string, params map[string]any, result any) {
	t.Helper()
	b.last++
	if err := b.conn.SetDeadline(time.Now().Add(waitLimit)); err != nil {
		t.Fatal(err)
	}
	if err := websocket.JSON.Send(b.conn, map[string]any{"id": b.last, "method": method, "params": params}); err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	for {
		var answer struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err := websocket.JSON.Receive(b.conn, &answer); err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		switch {
		case answer.ID != b.last: // an event
			continue
		case answer.Error != nil:
			t.Fatalf("%s: %s", method, answer.Error.Message)
		case result != nil:
			if err := json.Unmarshal(answer.Result, result); err != nil {
				t.Fatalf("%s: %v: %s", method, err, answer.Result)
			}
		}
		return
	}
}

func (b *browser) size(t *testing.T, width, height int) {
	t.Helper()
	b.call(t, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}, nil)
}

func (b *browser) open(t *testing.T, address string, width, height int) {
	t.Helper()
	b.size(t, width, height)
	b.call(t, "Page.navigate", map[string]any{"url": "about:blank"}, nil) // another fragment alone would load nothing
	b.call(t, "Page.navigate", map[string]any{"url": address}, nil)
}

// run runs a script in the page, in a block of its own, and returns what it says as text.
func (b *browser) run(t *testing.T, script string) string {
	t.Helper()
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails *struct{ Exception struct{ Description string } }
	}
	b.call(t, "Runtime.evaluate", map[string]any{"expression": "{" + script + "}", "returnByValue": true}, &r)
	if r.ExceptionDetails != nil {
		return r.ExceptionDetails.Exception.Description
	}
	return fmt.Sprint(r.Result.Value)
}

// wait waits until something holds in the page.
func (b *browser) wait(t *testing.T, what string) {
	t.Helper()
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(20 * time.Millisecond) {
		got := b.run(t, "Boolean("+what+")")
		if got == "true" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %s; the page says:\n%s", what, got, b.run(t, "document.body.innerText"))
		}
	}
}

// screenshot checks that there is a picture of the page, and keeps it if that was asked for.
func (b *browser) screenshot(t *testing.T, name string) {
	t.Helper()
	var r struct{ Data string }
	b.call(t, "Page.captureScreenshot", map[string]any{"format": "png"}, &r)
	picture, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := png.DecodeConfig(strings.NewReader(string(picture))); err != nil {
		t.Fatal(err)
	}
	if *screenshots != "" {
		if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), picture, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
