package images

import (
	"encoding/json"
	"sync"
)

// proxyCalls are the system calls that sluice-proxy makes: those seen under strace over its tests, those that the Go
// runtime may make on either processor, and those by which runc starts it (after it has put the filter in force).
var proxyCalls = []string{
	// Connections.
	"accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "recvfrom", "recvmmsg", "recvmsg",
	"sendmmsg", "sendmsg", "sendto", "setsockopt", "shutdown", "splice",
	// Waiting.
	"clock_gettime", "clock_nanosleep", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "eventfd2", "nanosleep",
	"restart_syscall",
	// Descriptors and files: policies, audit, its own sockets.
	"close", "close_range", "dup3", "faccessat", "faccessat2", "fchmodat", "fcntl", "flock", "fstat", "fstatfs", "getcwd",
	"getdents64", "inotify_add_watch", "inotify_init1", "inotify_rm_watch", "lseek", "mkdirat", "newfstatat", "openat",
	"pipe2", "pread64", "read", "readlinkat", "statfs", "statx", "unlinkat", "write", "writev",
	// Memory.
	"brk", "madvise", "mincore", "mmap", "mprotect", "munmap",
	// Threads and signals.
	"arch_prctl", "execve", "exit", "exit_group", "futex", "getpid", "getppid", "gettid", "rseq", "rt_sigaction",
	"rt_sigprocmask", "rt_sigreturn", "sched_getaffinity", "sched_yield", "set_robust_list", "set_tid_address",
	"sigaltstack", "tgkill",
	// What it is, and what it may have.
	"getegid", "geteuid", "getgid", "getrandom", "getrlimit", "getuid", "prlimit64", "uname",
}

// Numbers of the kernel's interface, the same on all of Go's 64-bit processors but those of MIPS.
const (
	afUnix, afInet, afInet6, afNetlink = 1, 2, 10, 16
	netlinkRoute                       = 0
	threadFlag                         = 0x10000 // CLONE_THREAD
	siocOutQ                           = 0x5411
	prSetVMA                           = 0x53564d41
)

// rule lets system calls through, if their arguments are as they should be.
type rule struct {
	Names  []string   `json:"names"`
	Action string     `json:"action"`
	Args   []argument `json:"args,omitempty"`
}

type argument struct {
	Index    int    `json:"index"`
	Value    uint64 `json:"value"`
	ValueTwo uint64 `json:"valueTwo,omitempty"` // of a masked comparison, with Value for the mask
	Op       string `json:"op"`
}

// ProxySeccomp returns the seccomp profile for containers of the image [SluiceProxy], as JSON that the engine reads. It
// opens sockets of TCP, UDP and Unix, and asks for addresses and routes; it makes threads, and no process.
//
// What is left out fails with EPERM. To kill is not safer, for nothing has been done, and one proxy serves all
// containers: a call that a new Go runtime only tries must not end their connections. Programs of other processors'
// modes, those of 32 bits, are killed.
var ProxySeccomp = sync.OnceValue(func() string {
	allow := func(names []string, args ...argument) rule { return rule{names, "SCMP_ACT_ALLOW", args} }
	is := func(index int, value uint64) argument { return argument{Index: index, Value: value, Op: "SCMP_CMP_EQ"} }
	p := struct {
		DefaultAction string `json:"defaultAction"`
		Syscalls      []rule `json:"syscalls"`
	}{"SCMP_ACT_ERRNO", []rule{
		allow(proxyCalls),
		allow([]string{"socket", "socketpair"}, is(0, afUnix)),
		allow([]string{"socket"}, is(0, afInet)),
		allow([]string{"socket"}, is(0, afInet6)),
		allow([]string{"socket"}, is(0, afNetlink), is(2, netlinkRoute)),
		allow([]string{"clone"}, argument{0, threadFlag, threadFlag, "SCMP_CMP_MASKED_EQ"}),
		allow([]string{"ioctl"}, is(1, siocOutQ)),
		allow([]string{"prctl"}, is(0, prSetVMA)),
	}}
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		panic(err) // it is made of plain values
	}
	return string(text) + "\n"
})
