package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/moby/profiles/seccomp"
)

// Which sockets a profile lets a container open. Programs of 32 bits on x86-64 do not matter in the rows.
func TestProfileOpens(t *testing.T) {
	const inet = 2
	errno := func(rules string) string { return `{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[` + rules + `]}` }
	allow := func(rules string) string { return `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[` + rules + `]}` }
	socket := func(action, more string) string {
		return fmt.Sprintf(`{"names":["socket"],"action":"SCMP_ACT_%s"%s}`, action, more)
	}
	arg := func(op string, value int) string {
		return fmt.Sprintf(`,"args":[{"index":0,"value":%d,"op":"SCMP_CMP_%s"}]`, value, op)
	}
	noCall := `,{"names":["socketcall","io_uring_setup"],"action":"SCMP_ACT_ERRNO"}`
	ring := `{"names":["io_uring_setup"],"action":"SCMP_ACT_ALLOW"}`
	for _, tt := range []struct {
		name, profile string
		vsock, inet   bool
	}{
		{"ours", SeccompProfile(), false, true},
		{"all", errno(socket("ALLOW", "")), true, true},
		{"log", errno(socket("LOG", "")), true, true},
		{"old_name", errno(`{"name":"socket","action":"SCMP_ACT_ALLOW"}`), true, true},
		{"none", errno(""), false, false},
		{"not_vsock", errno(socket("ALLOW", arg("NE", afVsock))), false, true},
		{"below_and_above", errno(socket("ALLOW", arg("LT", afVsock)) + "," + socket("ALLOW", arg("GT", afVsock))), false, true},
		{"up_to", errno(socket("ALLOW", arg("LE", afVsock))), true, true},
		{"from", errno(socket("ALLOW", arg("GE", afVsock))), true, false},
		{"one", errno(socket("ALLOW", arg("EQ", inet))), false, true},
		{"masked", errno(socket("ALLOW", `,"args":[{"index":0,"value":255,"valueTwo":2,"op":"SCMP_CMP_MASKED_EQ"}]`)), false, true},
		{"alternatives", errno(socket("ALLOW", `,"args":[{"index":0,"value":2,"op":"SCMP_CMP_EQ"},{"index":0,"value":40,"op":"SCMP_CMP_EQ"}]`)), true, true},
		{"other_argument", errno(socket("ALLOW", `,"args":[{"index":1,"value":1,"op":"SCMP_CMP_EQ"}]`)), true, true},
		{"ring", errno(socket("ALLOW", arg("EQ", inet)) + "," + ring), true, true},
		{"ring_alone", errno(ring), true, true},
		{"ring_left_open", allow(socket("ERRNO", arg("EQ", afVsock)) + `,{"names":["socketcall"],"action":"SCMP_ACT_ERRNO"}`), true, true},
		{"refused_one", allow(socket("ERRNO", arg("EQ", afVsock)) + noCall), false, true},
		{"refused_some", allow(socket("ERRNO", `,"args":[{"index":0,"value":40,"op":"SCMP_CMP_EQ"},{"index":1,"value":1,"op":"SCMP_CMP_EQ"}]`) + noCall), true, true},
		{"refused_sometimes", allow(socket("ERRNO", arg("EQ", afVsock)+`,"includes":{"caps":["CAP_SYS_ADMIN"]}`) + noCall), true, true},
		{"elsewhere", errno(socket("ALLOW", `,"includes":{"arches":["nosuch"]}`)), false, false},
		{"not_here", errno(socket("ALLOW", `,"excludes":{"arches":["`+runtime.GOARCH+`"]}`)), false, false},
		{"here", errno(socket("ALLOW", `,"includes":{"arches":["`+runtime.GOARCH+`"]}`)), true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, ok := parseSeccomp(tt.profile)
			if !ok {
				t.Fatalf("not a profile: %s", tt.profile)
			}
			for family, want := range map[uint64]bool{afVsock: tt.vsock, inet: tt.inet} {
				if got := opens(&p, family); got != want {
					t.Errorf("family %d: %v, want %v", family, got, want)
				}
			}
		})
	}
}

// Docker's own profile refuses the family too, but not to programs of 32 bits on x86-64.
func TestProfileOpensForOldPrograms(t *testing.T) {
	if got := opens(seccomp.DefaultProfile(), afVsock); got != multiplexes() {
		t.Errorf("Docker's: %v", got)
	}
	if multiplexes() != (runtime.GOARCH == "amd64") {
		t.Errorf("on %s", runtime.GOARCH)
	}
}

// Our profile refuses what no rule sees, and nothing else that Docker's lets through.
func TestSeccompProfile(t *testing.T) {
	ours, ok := parseSeccomp(SeccompProfile())
	if !ok || letsAllThrough(SeccompProfile()) {
		t.Fatal("not a profile")
	}
	theirs := seccomp.DefaultProfile()
	var refused []uint64
	for family := range uint64(64) {
		mine, default_ := permits(&ours, "socket", &family), permits(theirs, "socket", &family)
		if mine && !default_ {
			t.Errorf("family %d is open, which it is not with Docker", family)
		}
		if default_ && !mine {
			refused = append(refused, family)
		}
	}
	if got := fmt.Sprint(refused); got != "[32 42 43 44]" { // IUCV, QIPCRTR, SMC, XDP; Docker refuses VSOCK by now
		t.Errorf("refused beyond Docker: %v", got)
	}
	for _, s := range theirs.Syscalls {
		for _, call := range s.Names {
			if call != "socket" && permits(theirs, call, nil) && !permits(&ours, call, nil) && (call != "socketcall" || !multiplexes()) {
				t.Errorf("%s is refused", call)
			}
		}
	}
}

func TestVsock(t *testing.T) {
	recent := Info{Version: "28.5.2", APIVersion: "1.51"}
	old := Info{Version: "20.10.24+dfsg1", APIVersion: "1.41"}
	withRing := Info{Version: "24.0.9", APIVersion: "1.43"}
	other, none := recent, recent
	other.OtherSeccomp, none.Unconfined = true, true
	for _, tt := range []struct {
		name    string
		options []string
		info    Info
		want    bool
	}{
		{"recent", nil, recent, multiplexes()},
		{"recent_own", []string{"seccomp=builtin"}, other, multiplexes()},
		{"old", nil, old, true},
		{"refuses_the_family_alone", nil, withRing, true},
		{"administrators", nil, other, true},
		{"none", nil, none, true},
		{"ours", []string{"no-new-privileges", "seccomp=" + SeccompProfile()}, old, false},
		{"ours_before_another", []string{"seccomp=" + SeccompProfile(), "seccomp={"}, recent, true},
		{"unreadable", []string{"seccomp={"}, recent, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := vsock(tt.options, tt.info); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			c, o := fine(), conditions()
			c.Vsock = tt.want
			if list := c.Warnings(o); len(list) > 0 {
				t.Errorf("without a device: %v", list)
			}
			o.Vsock = true
			if list := c.Warnings(o); len(list) > 0 != tt.want {
				t.Errorf("warnings %v", list)
			}
			if list := c.Refusals(o); len(list) > 0 {
				t.Errorf("refused: %v", list)
			}
		})
	}
}

func TestHasVsock(t *testing.T) {
	for text, want := range map[string]bool{"258 vsock\n234 btrfs-control\n": true, "234 btrfs-control\n": false, "241 vhost-vsock\n": false} {
		file := filepath.Join(t.TempDir(), "misc")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := hasVsock(file); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	if hasVsock(filepath.Join(t.TempDir(), "nosuch")) {
		t.Error("no file")
	}
}

func TestSeccompDefault(t *testing.T) {
	for option, want := range map[string]string{
		"name=seccomp,profile=builtin": "builtin", "name=seccomp,profile=default": "builtin", "name=seccomp": "builtin",
		"name=seccomp,profile=unconfined": "unconfined", "name=seccomp,profile=/etc/profile.json": "/etc/profile.json", "name=apparmor": "",
	} {
		if got := SeccompDefault([]string{"name=cgroupns", option}); got != want {
			t.Errorf("%s: %q, want %q", option, got, want)
		}
		info := strings.HasPrefix(want, "/")
		if ReplacesSeccomp(want) == (info || want == "") {
			t.Errorf("%s: replaced", option)
		}
	}
}
