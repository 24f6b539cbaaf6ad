package main

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// times are what one thing took again and again.
type times []time.Duration

// at returns the value below which a share of all lies, p50 for 0.5.
func (t times) at(share float64) time.Duration {
	sorted := slices.Sorted(slices.Values(t))
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]
}

func (t times) String() string {
	return fmt.Sprintf("p10 %s, p50 %s, p99 %s", milliseconds(t.at(0.1)), milliseconds(t.at(0.5)), milliseconds(t.at(0.99)))
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// ratios are those of two figures that were taken right after one another.
type ratios []float64

func (r ratios) median() float64 {
	sorted := slices.Sorted(slices.Values(r))
	if len(sorted) == 0 {
		return math.NaN()
	}
	return sorted[len(sorted)/2]
}

// String gives the median and its 95 % interval, by the ranks of a binomial distribution.
func (r ratios) String() string {
	sorted := slices.Sorted(slices.Values(r))
	n := len(sorted)
	if n == 0 {
		return "nothing"
	}
	half := int(math.Ceil(0.98 * math.Sqrt(float64(n))))
	low, high := max(0, n/2-half), min(n-1, n/2+half)
	return fmt.Sprintf("%.2f [%.2f–%.2f]", sorted[n/2], sorted[low], sorted[high])
}

// cpu is what this process has used so far, its work in the kernel for packets included.
func cpu() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// cpuOf is what other processes have used so far. Unlike the time that something took, it does not count what other
// programs were doing meanwhile.
func cpuOf(pids ...int) (sum time.Duration, err error) {
	for _, pid := range pids {
		var used unix.Timespec
		// clock_getcpuclockid(3): the process's own clock, in units of the scheduler.
		if err := unix.ClockGettime(int32(^pid)<<3|2, &used); err != nil {
			return 0, fmt.Errorf("clock of process %d: %w", pid, err)
		}
		sum += time.Duration(used.Nano())
	}
	return sum, nil
}

// machine says what this is measured on.
func machine() string {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		release = []byte("unknown")
	}
	return fmt.Sprintf("%d processors, Linux %s, %s", runtime.NumCPU(), strings.TrimSpace(string(release)), runtime.Version())
}

// load is how many processes ran or waited for a processor in the last minute.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err.Error()
	}
	return strings.Fields(string(text))[0]
}
