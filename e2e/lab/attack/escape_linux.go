package attack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An Escape is a way out of a container's network that needs no packet: what came of it, "" if it works.
type Escape struct{ Name, Error string }

// families are those of socket(2) that carry anything to anywhere, beside the two of IP and AF_PACKET.
var families = map[string]int{
	"ax25": unix.AF_AX25, "ipx": unix.AF_IPX, "appletalk": unix.AF_APPLETALK, "netrom": unix.AF_NETROM, "bridge": unix.AF_BRIDGE,
	"atmpvc": unix.AF_ATMPVC, "x25": unix.AF_X25, "rose": unix.AF_ROSE, "decnet": unix.AF_DECnet, "llc": unix.AF_LLC, "key": unix.AF_KEY,
	"rds": unix.AF_RDS, "pppox": unix.AF_PPPOX, "can": unix.AF_CAN, "tipc": unix.AF_TIPC, "bluetooth": unix.AF_BLUETOOTH, "iucv": unix.AF_IUCV,
	"rxrpc": unix.AF_RXRPC, "isdn": unix.AF_ISDN, "phonet": unix.AF_PHONET, "ieee802154": unix.AF_IEEE802154, "caif": unix.AF_CAIF,
	"nfc": unix.AF_NFC, "vsock": unix.AF_VSOCK, "kcm": unix.AF_KCM, "qipcrtr": unix.AF_QIPCRTR, "smc": unix.AF_SMC, "xdp": unix.AF_XDP,
	"mctp": unix.AF_MCTP,
}

// Escapes tries every way.
func Escapes() (all []Escape) {
	add := func(name string, err error) {
		e := Escape{Name: name}
		if err != nil {
			e.Error = err.Error()
		}
		all = append(all, e)
	}
	for name, family := range families {
		var last error
		for _, kind := range []int{unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
			fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
			if last = err; err == nil {
				unix.Close(fd)
				break
			}
		}
		add("family-"+name, last)
	}
	for name, flags := range map[string]uintptr{"network-namespace": unix.CLONE_NEWNET, "user-namespace": unix.CLONE_NEWUSER, "mount-namespace": unix.CLONE_NEWNS,
		"user-and-network-namespace": unix.CLONE_NEWUSER | unix.CLONE_NEWNET} {
		add(name, clone(flags))
	}
	add("mount", unix.Mount("none", "/", "tmpfs", 0, ""))
	add("own-namespace-entered", enter("/proc/self/ns/net"))
	add("rules-in-bpf", bpf())
	add("devices-made", device("mem", 1, 1))
	add("tunnel", tunnel())
	add("route", route())
	add("rules-listed", netfilter())
	add("kernel-parameter", os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
	add("trace-of-first-process", firstProcess())
	for _, socket := range abstract() {
		add("abstract-socket-"+socket, nil)
	}
	return all
}

// clone starts a program in new namespaces. A process of many threads, as this one is, could not change its own.
func clone(flags uintptr) error {
	c := exec.Command("/proc/self/exe")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if err := c.Start(); err != nil {
		return err
	}
	_ = c.Wait() // it says how it is used
	return nil
}

func enter(namespace string) error {
	fd, err := unix.Open(namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Setns(fd, unix.CLONE_NEWNET)
}

func bpf() error {
	var nothing [128]byte
	_, _, errno := unix.Syscall(unix.SYS_BPF, 0, uintptr(unsafe.Pointer(&nothing)), uintptr(len(nothing)))
	if errno == unix.EINVAL { // it got as far as to look at the arguments
		return nil
	}
	return errno
}

// device makes a device and opens it.
func device(name string, major, minor uint32) error {
	dir, err := os.MkdirTemp("/", "device")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, name)
	if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(major, minor))); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// tunnel makes an interface of its own, whose packets a program reads and writes.
func tunnel() error {
	dir, err := os.MkdirTemp("/", "device")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "tun")
	if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(10, 200))); err != nil {
		return err
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("out0")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TUN)
	return unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
}

// message sends one to the kernel by netlink, and returns the error that it answers with.
func message(protocol int, kind, flags uint16, body []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	wait := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return err
	}
	b := word32(uint32(16 + len(body)))
	b = append(b, byte(kind), byte(kind>>8), byte(flags), byte(flags>>8), 1, 0, 0, 0, 0, 0, 0, 0)
	if err := unix.Sendto(fd, append(b, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < 20 {
		return fmt.Errorf("an answer of %d bytes", n)
	}
	if kind := uint16(answer[4]) | uint16(answer[5])<<8; kind == unix.NLMSG_ERROR {
		if code := int32(uint32(answer[16]) | uint32(answer[17])<<8 | uint32(answer[18])<<16 | uint32(answer[19])<<24); code != 0 {
			return unix.Errno(-code)
		}
	}
	return nil
}

func word32(n uint32) []byte { return []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)} }

// route adds one to 198.18.0.0/15 by the first interface, rtnetlink(7).
func route() error {
	body := []byte{unix.AF_INET, 15, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_LINK, unix.RTN_UNICAST, 0, 0, 0, 0}
	body = append(body, 8, 0, unix.RTA_DST, 0, 198, 18, 0, 0, 8, 0, unix.RTA_OIF, 0, 1, 0, 0, 0)
	return message(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE, body)
}

// netfilter asks for the tables of nftables.
func netfilter() error {
	const tables = 10<<8 | 1 // NFNL_SUBSYS_NFTABLES, NFT_MSG_GETTABLE
	return message(unix.NETLINK_NETFILTER, tables, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, []byte{0, 0, 0, 0})
}

// firstProcess tries to write to the memory of the container's first process, which is of the same user.
func firstProcess() error {
	if os.Getpid() == 1 {
		return unix.ESRCH
	}
	return unix.PtraceAttach(1)
}

// abstract lists the unix sockets without a path in the network namespace, proc_pid_net(5).
func abstract() (names []string) {
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return []string{strconv.Quote(err.Error())}
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 8 && strings.HasPrefix(fields[7], "@") {
			names = append(names, fields[7])
		}
	}
	return names
}
