package engine

import (
	"encoding/json"
	"slices"
	"sync"

	"github.com/moby/profiles/seccomp"
	"golang.org/x/sys/unix"
)

// withoutRules are families of sockets that get past the rules of a container's network: those that belong to no network
// namespace, and those whose packets pass no hook of netfilter.
var withoutRules = []uint64{unix.AF_VSOCK, unix.AF_IUCV, unix.AF_QIPCRTR, unix.AF_SMC, unix.AF_XDP}

// SeccompProfile returns a profile for containers, in the engine's words: Docker's own one, which also refuses
// sockets that no rule of a container's network sees.
//
// On x86-64 it refuses socketcall(2) too, by which programs of 32 bits can open any socket, unseen: they fall back to
// socket(2), or have no network.
var SeccompProfile = sync.OnceValue(func() string {
	p := seccomp.DefaultProfile()
	p.Syscalls = slices.DeleteFunc(p.Syscalls, func(s *seccomp.Syscall) bool {
		return slices.Contains(s.Names, "socket") && len(s.Args) == 1 && slices.Contains(withoutRules, s.Args[0].Value)
	})
	onlyElsewhere := &seccomp.Filter{Arches: []string{"amd64"}}
	var call *seccomp.Syscall
	for _, s := range p.Syscalls {
		if i := slices.Index(s.Names, "socketcall"); i >= 0 {
			s.Names = slices.Delete(s.Names, i, i+1)
			copied := *s
			call = &copied
		}
	}
	if call != nil {
		call.Names, call.Excludes = []string{"socketcall"}, onlyElsewhere
		refused := *call
		errno := uint(unix.ENOSYS)
		refused.Action, refused.ErrnoRet, refused.Includes, refused.Excludes = "SCMP_ACT_ERRNO", &errno, onlyElsewhere, nil
		p.Syscalls = append(p.Syscalls, call, &refused)
	}
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // it is made of plain values
	}
	return string(text)
})
