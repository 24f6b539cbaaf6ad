package limits

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

func TestGroupLimit(t *testing.T) {
	const none = math.MaxInt64
	for _, row := range []struct {
		name         string
		files        map[string]string
		memory, pids int64
	}{
		{"nothing", nil, none, none},
		{"v2-container", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "134217728\n", "sys/fs/cgroup/pids.max": "64\n"}, 134217728, 64},
		{"v2-no-limit", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/pids.max": "max\n"}, none, none},
		{"v2-host", map[string]string{"proc/self/cgroup": "0::/a.slice/b.service\n", "sys/fs/cgroup/a.slice/memory.max": "1000\n",
			"sys/fs/cgroup/a.slice/b.service/memory.max": "max\n", "sys/fs/cgroup/a.slice/b.service/pids.max": "33\n"}, 1000, 33},
		{"v2-smallest", map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "3000\n", "sys/fs/cgroup/a/b/memory.max": "2000\n"}, 2000, none},
		{"v1-container", map[string]string{"proc/self/cgroup": "12:pids:/docker/0123\n9:memory:/docker/0123\n3:cpu,cpuacct:/docker/0123\n1:name=systemd:/docker/0123\n0::/system.slice\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "134217728\n", "sys/fs/cgroup/pids/pids.max": "64\n"}, 134217728, 64},
		{"v1-no-limit", map[string]string{"proc/self/cgroup": "9:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, none, none},
		{"v1-joined", map[string]string{"proc/self/cgroup": "4:memory,hugetlb:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "77\n"}, 77, none},
		{"climbs-out", map[string]string{"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/x/memory.max": "88\n"}, 88, none},
		{"junk", map[string]string{"proc/self/cgroup": "x\n::\n0::\n", "sys/fs/cgroup/memory.max": "many\n", "sys/fs/cgroup/pids.max": "-1\n"}, none, none},
	} {
		t.Run(row.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range row.files {
				path := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got := groupLimit(root, "memory", "memory.max", "memory.limit_in_bytes"); got != row.memory {
				t.Errorf("memory: got %d, want %d", got, row.memory)
			}
			if got := groupLimit(root, "pids", "pids.max", "pids.max"); got != row.pids {
				t.Errorf("pids: got %d, want %d", got, row.pids)
			}
		})
	}
}

func TestApply(t *testing.T) {
	former := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(former) })
	for _, row := range []struct {
		name, group, environment string
		memory, want             int64
	}{
		{"no-limit", "max", "", 0, math.MaxInt64},
		{"of-the-group", "1000000", "", 0, 850000},
		{"own", "max", "", 2000000, 1700000},
		{"group-is-smaller", "1000000", "", 2000000, 850000},
		{"own-is-smaller", "3000000", "", 2000000, 1700000},
		{"environment", "1000000", "1MiB", 2000000, math.MaxInt64}, // the runtime's business
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Setenv("GOMEMLIMIT", row.environment)
			debug.SetMemoryLimit(math.MaxInt64)
			root := t.TempDir()
			for name, text := range map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": row.group} {
				path := filepath.Join(root, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			Apply(root, row.memory)
			if got := debug.SetMemoryLimit(-1); got != row.want {
				t.Errorf("got %d, want %d", got, row.want)
			}
		})
	}
}

func TestProcessors(t *testing.T) {
	for threads, want := range map[int64]int{64: 10, 20: 1, 1: 1, 0: 1, 1 << 40: 1024} {
		if got := processors(threads); got != want {
			t.Errorf("%d threads: got %d, want %d", threads, got, want)
		}
	}
}
