package images

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestHolderIsAProgram(t *testing.T) {
	for arch := range machines {
		program, err := waitForever(arch)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(program))
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		if len(f.Progs) != 1 || f.Entry != f.Progs[0].Vaddr+120 || f.Progs[0].Filesz != uint64(len(program)) || len(program) > 500 {
			t.Errorf("%s: %d bytes, header %+v, segments %+v", arch, len(program), f.FileHeader, f.Progs)
		}
	}
	if _, err := waitForever("mips"); err == nil {
		t.Error("no error for an architecture without code")
	}
}

// TestHolderWaits runs the program, and looks where it sleeps.
func TestHolderWaits(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("a program for Linux")
	}
	program, err := waitForever(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "holder")
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	state := ""
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "stat"))
		if err != nil {
			t.Fatal(err)
		}
		if _, after, _ := strings.Cut(string(stat), ") "); after[:1] == "S" {
			state = "sleeping"
			break
		}
	}
	if state == "" {
		t.Error("it does not sleep")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("it ended by itself: %v", err)
	}
}
