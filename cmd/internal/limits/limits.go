// Package limits keeps the Go runtime inside the control group that the program runs in.
package limits

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// Apply keeps the Go runtime inside the control group that the program runs in, and in any case within as many bytes as
// memory says; 0 is no limit of its own. What cannot be read of the group, below the file system's root, is taken for no
// limit, which is what the runtime does by itself.
//
// Memory: the garbage collector works harder from 85 % of the limit on; the rest is for sockets and pipes, which the
// kernel charges to the same group. GOMEMLIMIT in the environment has precedence.
// Threads: where no more can be made the runtime dies. It needs up to four a processor while system calls block, and
// some of its own. The number of processors that the group may use is the runtime's own business (since Go 1.25).
func Apply(root string, memory int64) {
	limit := groupLimit(root, "memory", "memory.max", "memory.limit_in_bytes")
	if memory > 0 {
		limit = min(limit, memory)
	}
	if limit < math.MaxInt64 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit / 100 * 85)
	}
	if limit := groupLimit(root, "pids", "pids.max", "pids.max"); limit < math.MaxInt64 {
		if most := processors(limit); most < runtime.GOMAXPROCS(0) {
			runtime.GOMAXPROCS(most)
		}
	}
}

func processors(threads int64) int {
	const own = 16 + 8 // those of the run time, and of a health check beside it
	return int(max(1, min((threads-own)/4, 1<<10)))
}

// groupLimit returns the smallest limit on the way from the program's control group to the root of its hierarchy;
// math.MaxInt64 if there is none. Version 2 has one hierarchy, version 1 one for each controller.
func groupLimit(root, controller, file2, file1 string) int64 {
	limit := int64(math.MaxInt64)
	groups, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return limit
	}
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		top, file := filepath.Join(root, "sys/fs/cgroup"), file2
		if parts[0] != "0" || parts[1] != "" {
			if !hasController(parts[1], controller) {
				continue
			}
			top, file = filepath.Join(top, controller), file1
		}
		// In a container the path may be that outside, while the mount begins at the container's own group: then only
		// the last step finds a file.
		for group := filepath.Clean("/" + parts[2]); ; group = filepath.Dir(group) {
			limit = min(limit, readLimit(filepath.Join(top, group, file)))
			if group == "/" {
				break
			}
		}
	}
	return limit
}

func hasController(list, controller string) bool {
	for one := range strings.SplitSeq(list, ",") {
		if one == controller {
			return true
		}
	}
	return false
}

func readLimit(file string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return math.MaxInt64
	}
	// "max" in version 2; in version 1 no limit is a number near the largest.
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n <= 0 || n > 1<<60 {
		return math.MaxInt64
	}
	return n
}
