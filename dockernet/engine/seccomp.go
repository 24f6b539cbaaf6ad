package engine

import (
	"encoding/json"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/moby/profiles/seccomp"
)

const (
	seccompOption = "seccomp"
	noSeccomp     = "unconfined"
	ownSeccomp    = "builtin"
)

// lets reports whether an action lets a system call through.
func lets[Action ~string](a Action) bool { return a == "SCMP_ACT_ALLOW" || a == "SCMP_ACT_LOG" }

// SeccompOf returns the seccomp profile that a container's security options ask for: a profile's text or a word for
// one, "" if they ask for none. The engine takes the last one, and has taken a colon for the sign of equality.
func SeccompOf(options []string) (profile string) {
	for _, o := range options {
		if i := strings.IndexAny(o, "=:"); i >= 0 && o[:i] == seccompOption {
			profile = o[i+1:]
		}
	}
	return profile
}

// SeccompDefault returns what the engine says of its seccomp profile in its own security options (system.Info): a word
// for its own one or for none, or the path of another; "" if it cannot use any.
func SeccompDefault(options []string) string {
	for _, o := range options {
		name, rest, _ := strings.Cut(o, ",") // "name=seccomp,profile=builtin"
		if name != "name="+seccompOption {
			continue
		}
		profile := strings.TrimPrefix(rest, "profile=")
		if profile == "" || profile == "default" { // 20.10's word, and older ones say nothing
			return ownSeccomp
		}
		return profile
	}
	return ""
}

// ReplacesSeccomp reports whether containers that ask for no seccomp profile are to be given [SeccompProfile]: where the
// engine can use it, and nobody has given it another one.
func ReplacesSeccomp(engineDefault string) bool {
	return engineDefault == ownSeccomp || engineDefault == noSeccomp
}

// unconfined reports whether no seccomp filter holds.
func unconfined(options []string, privileged bool, info Info) bool {
	if privileged {
		return true
	}
	switch profile := SeccompOf(options); profile {
	case "":
		return info.Unconfined
	case noSeccomp:
		return true
	case ownSeccomp:
		return false
	default:
		return letsAllThrough(profile)
	}
}

// letsAllThrough reports whether a seccomp profile, which the engine has as its text, refuses nothing. One that cannot
// be read counts as that too.
func letsAllThrough(profile string) bool {
	p, ok := parseSeccomp(profile)
	return !ok || lets(p.DefaultAction) && !slices.ContainsFunc(p.Syscalls, func(s *seccomp.Syscall) bool { return !lets(s.Action) })
}

func parseSeccomp(profile string) (p seccomp.Seccomp, ok bool) {
	ok = json.Unmarshal([]byte(profile), &p) == nil && p.DefaultAction != "" && !slices.Contains(p.Syscalls, nil)
	return p, ok
}

// vsock reports whether a container may be able to open sockets of AF_VSOCK (vsock(7)), as far as its seccomp profile
// goes.
func vsock(options []string, info Info) bool {
	switch profile := SeccompOf(options); {
	case profile == SeccompProfile():
		return false
	case profile == "" || profile == ownSeccomp:
		// Engines' own profiles refuse the family since 23.0, and io_uring since 25.0; none does for programs of 32 bits:
		// see opens. What is in a file of the administrator's is not known.
		return info.Unconfined || profile == "" && info.OtherSeccomp || !versionAtLeast(info.Version, 25) && !versionAtLeast(info.APIVersion, 1, 44) || multiplexes()
	default:
		p, ok := parseSeccomp(profile)
		return !ok || opens(&p, afVsock)
	}
}

// multiplexes reports whether programs on this machine can open sockets by socketcall(2), of whose arguments seccomp sees
// nothing: those of 32 bits on x86-64. Where it is the only way to open any, no profile refuses it.
func multiplexes() bool { return runtime.GOARCH == "amd64" }

// miscDevices lists the kernel's smaller devices, in containers too.
const miscDevices = "/proc/misc"

// hasVsock reports whether the kernel has sockets of AF_VSOCK loaded, by a file as [miscDevices]. Where what carries them
// is there, so are they.
func hasVsock(misc string) bool {
	text, err := os.ReadFile(misc)
	return err == nil && slices.Contains(strings.Fields(string(text)), "vsock")
}

const afVsock = 40 // AF_VSOCK of socket(2)

// opens reports whether a profile may let a program open sockets of a family. Where it depends on what is not looked at,
// it may. By io_uring(7) a program opens sockets without any system call that a profile could look at, since Linux 5.19.
func opens(p *seccomp.Seccomp, family uint64) bool {
	return permits(p, "socket", &family) || permits(p, "io_uring_setup", nil) || multiplexes() && permits(p, "socketcall", nil)
}

// permits reports whether the profile may let a system call through, with a first argument if one is given.
func permits(p *seccomp.Seccomp, call string, first *uint64) bool {
	refused := false
	for _, s := range p.Syscalls {
		//lint:ignore SA1019 The engine reads it, so it counts.
		if s.Name != call && !slices.Contains(s.Names, call) || !applies(s) {
			continue
		}
		holds, always := true, len(s.Args) == 0
		for _, a := range s.Args {
			if a.Index == 0 && first != nil {
				holds = argumentHolds(*first, a.Value, a.ValueTwo, string(a.Op))
				always = holds && len(s.Args) == 1
				if holds {
					break // engines take several conditions for one argument as alternatives
				}
			}
		}
		if lets(s.Action) && holds {
			return true
		}
		conditional := s.Includes != nil || s.Excludes != nil
		refused = refused || !lets(s.Action) && always && !conditional
	}
	return lets(p.DefaultAction) && !refused
}

// applies leaves out rules for other machines.
func applies(s *seccomp.Syscall) bool {
	if s.Includes != nil && len(s.Includes.Arches) > 0 && !slices.Contains(s.Includes.Arches, runtime.GOARCH) {
		return false
	}
	return s.Excludes == nil || !slices.Contains(s.Excludes.Arches, runtime.GOARCH)
}

// argumentHolds is what seccomp_rule_add(3) says of an argument. What it does not know may hold.
func argumentHolds(value, want, two uint64, op string) bool {
	switch op {
	case "SCMP_CMP_EQ":
		return value == want
	case "SCMP_CMP_NE":
		return value != want
	case "SCMP_CMP_LT":
		return value < want
	case "SCMP_CMP_LE":
		return value <= want
	case "SCMP_CMP_GE":
		return value >= want
	case "SCMP_CMP_GT":
		return value > want
	case "SCMP_CMP_MASKED_EQ":
		return value&want == two
	}
	return true
}
