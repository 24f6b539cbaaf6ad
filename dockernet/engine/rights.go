package engine

import (
	"slices"
	"strings"
)

// Capabilities are written as the engine does, in upper case without "CAP_" (capabilities(7)).
const (
	capNetAdmin  = "NET_ADMIN"
	capSysAdmin  = "SYS_ADMIN"
	capSysModule = "SYS_MODULE"
	capBPF       = "BPF"
	capSysPtrace = "SYS_PTRACE"
	allOfThem    = "ALL"
)

// defaultCapabilities are what a container has that asks for nothing
// (https://docs.docker.com/engine/containers/run/#runtime-privilege-and-linux-capabilities).
var defaultCapabilities = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
	"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

// dangerous are those that matter here beyond the default ones.
var dangerous = []string{capNetAdmin, capSysAdmin, capSysModule, capBPF, capSysPtrace}

// capabilities returns what a container has, of the default and the dangerous ones. The engine adds what is asked for
// after it has dropped, so that what is in both lists is there.
func capabilities(privileged bool, add, drop []string) []string {
	add, drop = normalCapabilities(add), normalCapabilities(drop)
	var has []string
	switch {
	case privileged:
		has = slices.Concat(defaultCapabilities, dangerous)
	case slices.Contains(add, allOfThem):
		has = without(slices.Concat(defaultCapabilities, dangerous), drop)
	case slices.Contains(drop, allOfThem):
		has = add
	default:
		has = append(without(defaultCapabilities, drop), add...)
	}
	slices.Sort(has)
	return slices.Compact(has)
}

func normalCapabilities(list []string) []string {
	var normal []string
	for _, c := range list {
		normal = append(normal, strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(c)), "CAP_"))
	}
	return normal
}

func without(list, drop []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(c string) bool { return slices.Contains(drop, c) })
}
