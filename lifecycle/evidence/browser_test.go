package evidence

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var (
	runBrowser = flag.Bool("run-browser", false, "show the report in a browser without a window; needs chromium")
	pictures   = flag.String("pictures", "", "with -run-browser: write pictures of the report into this directory")
)

// browser runs chromium without a window and without a network, and returns what it prints.
func browser(t *testing.T, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "chromium", append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND", "--hide-scrollbars",
		"--user-data-dir=" + t.TempDir()}, args...)...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("chromium: %v\n%s", err, complaints.Bytes())
	}
	return out
}

// shownReport is a report of a task of which there is something to show.
func shownReport(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "result.json"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := ReadReport(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	return page.Bytes()
}

// measured is what a script finds in a page.
type measured struct {
	Wide      int     // pixels of the page, which must not be more than the window has
	Smallest  float64 // pixels of the smallest letters
	Bars      int     // that can be seen on the time line
	Offscreen []string
	Text      string
}

const measure = `<!doctype html><iframe id="f" style="width:%dpx;height:800px;border:0" srcdoc="%s"></iframe><pre id="out"></pre><script>
onload = () => {
  const d = f.contentDocument, all = [...d.body.querySelectorAll('*')], wide = d.documentElement.clientWidth;
  const seen = e => e.getClientRects().length > 0;
  const texts = all.filter(e => seen(e) && [...e.childNodes].some(n => n.nodeType == 3 && n.textContent.trim()));
  out.textContent = JSON.stringify({
    Wide: d.documentElement.scrollWidth,
    Smallest: Math.min(...texts.map(e => parseFloat(getComputedStyle(e).fontSize))),
    Bars: all.filter(e => e.classList.contains('bar') && e.getBoundingClientRect().width > 0).length,
    Offscreen: texts.filter(e => e.getBoundingClientRect().right > wide + 1).map(e => e.textContent),
    Text: d.body.innerText,
  });
};
</script>`

// TestInBrowser shows a report as a phone and as a desktop would.
func TestInBrowser(t *testing.T) {
	if !*runBrowser {
		t.Skip("needs -run-browser")
	}
	page := shownReport(t)
	file := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(file, page, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name          string
		width, height int
	}{{"phone", 390, 1240}, {"desktop", 1100, 860}} {
		t.Run(row.name, func(t *testing.T) {
			wrapper := filepath.Join(t.TempDir(), "measure.html")
			if err := os.WriteFile(wrapper, fmt.Appendf(nil, measure, row.width, html.EscapeString(string(page))), 0o600); err != nil {
				t.Fatal(err)
			}
			dom := browser(t, "--window-size=1280,900", "--dump-dom", "file://"+wrapper)
			found := regexp.MustCompile(`(?s)<pre id="out">(.*?)</pre>`).FindSubmatch(dom)
			if found == nil {
				t.Fatalf("no measure in %.300s", dom)
			}
			var m measured
			if err := json.Unmarshal([]byte(html.UnescapeString(string(found[1]))), &m); err != nil {
				t.Fatalf("%v: %s", err, found[1])
			}
			if m.Wide > row.width || len(m.Offscreen) > 0 {
				t.Errorf("it is %d pixels wide, the window %d; outside are %q", m.Wide, row.width, m.Offscreen)
			}
			if m.Smallest < 12 {
				t.Errorf("letters of %v pixels are too small", m.Smallest)
			}
			if m.Bars != 10 {
				t.Errorf("%d steps can be seen on the time line, want 10", m.Bars)
			}
			for _, want := range []string{"count-words", "the agent tried what its policy refuses", "a policy was in force before the first process",
				"evil.example:443", "would need evil.example:443", "2 refused (1 in DNS)", "mirror.example.com:443"} {
				if !strings.Contains(m.Text, want) {
					t.Errorf("%q cannot be read in\n%s", want, m.Text)
				}
			}
			if *pictures != "" {
				browser(t, fmt.Sprintf("--window-size=%d,%d", row.width, row.height), "--screenshot="+filepath.Join(*pictures, "report-"+row.name+".png"), "file://"+file)
			}
		})
	}
}
