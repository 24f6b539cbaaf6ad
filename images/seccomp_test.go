package images

import (
	"encoding/json"
	"flag"
	"os"
	"slices"
	"testing"
)

var update = flag.Bool("update", false, "write the files that tests compare with")

// The file for harnesses is the profile that the controller uses.
func TestProxySeccompFile(t *testing.T) {
	const file = "../examples/seccomp/sluice-proxy.json"
	if *update {
		if err := os.WriteFile(file, []byte(ProxySeccomp()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != ProxySeccomp() {
		t.Errorf("%s is not the profile (error %v): go test ./images -run %s -update", file, err, t.Name())
	}
}

// What a process could get out of its cage by is not let through, with whatever arguments.
func TestProxySeccompRefuses(t *testing.T) {
	var p struct {
		DefaultAction string
		Syscalls      []rule
	}
	if err := json.Unmarshal([]byte(ProxySeccomp()), &p); err != nil {
		t.Fatal(err)
	}
	if p.DefaultAction != "SCMP_ACT_ERRNO" {
		t.Errorf("by default %s", p.DefaultAction)
	}
	listed := map[string]bool{}
	for _, r := range p.Syscalls {
		for _, name := range r.Names {
			if listed[name] && r.Args == nil {
				t.Errorf("%s stands here twice", name)
			}
			listed[name] = true
			if slices.Contains([]string{"socket", "clone", "ioctl", "prctl"}, name) && len(r.Args) == 0 {
				t.Errorf("%s is let through with any argument", name)
			}
		}
	}
	for _, name := range []string{"ptrace", "bpf", "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_by_handle_at", "keyctl", "add_key",
		"perf_event_open", "userfaultfd", "io_uring_setup", "process_vm_readv", "process_vm_writev", "kexec_load", "init_module", "finit_module", "fork", "vfork",
		"clone3", "execveat", "memfd_create", "personality", "setuid", "setgid", "setgroups", "capset", "kill", "pidfd_getfd", "symlinkat", "linkat", "mknodat", "socketcall"} {
		if listed[name] {
			t.Errorf("%s is let through", name)
		}
	}
}
